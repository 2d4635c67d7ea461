# SPDX-License-Identifier: MIT
"""Makes mutants of C++ text by its tokens: no parser, so some of them do not compile.

Comments, literals of text, preprocessor lines and calls of macros (names in capitals) are never touched. The kinds:
  call       a statement that is a call alone is dropped
  operands   both sides of a binary - / < <= change places
  bound      a comparison takes one more or one less, a loop begins one later
  condition  the condition of an `if` is negated
  axis       another axis of the mesh, or another collective of the same signature
  reduction  another reduction of the same kind
"""
import dataclasses
import re

KINDS = ("call", "operands", "bound", "condition", "axis", "reduction")

# Names of one kind, each after the same prefix; a mutant has another name of its group.
NAMES = [
    ("axis", r"\bAxis::", ("kPipeline", "kData", "kTensor")),
    ("axis", r"\b\w*(?:extents|coordinate|mesh)\w*\.", ("pipeline", "data", "tensor")),
    ("axis", r"(?:\.|->)", ("all_gather", "reduce_scatter", "all_to_all")),
    ("axis", r"\bOperationKind::", ("kAllReduce", "kAllGather", "kReduceScatter", "kAllToAll", "kBroadcast")),
    ("reduction", r"\bReduceOp::", ("kSum", "kMax", "kMin")),
    ("reduction", r"\bLossReduction::", ("kSum", "kMean")),
    ("reduction", r"\bat::", ("sum", "mean", "amax")),
]

SKIPPED = re.compile(
    r'(?P<comment>//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/)'
    r'|(?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^()\s\\]{0,16})\(.*?\)(?P=delimiter)")'
    r'|(?P<text>"(?:[^"\\\n]|\\.)*"|(?<![0-9A-Fa-f])\'(?:[^\'\\\n]|\\.)+\')'
    r'|(?P<directive>(?m:^)[ \t]*\#(?:[^\n\\]|\\.|\\\n)*)', re.DOTALL)
MACRO_CALL = re.compile(r"\b[A-Z][A-Z0-9_]*[A-Z0-9]\s*\(")
NAME = r"[A-Za-z_]\w*"
GROUP = r"(?:\([^(){};]*(?:\([^(){};]*\)[^(){};]*)*\)|\[[^\[\]{};]*\])"  # ( ) or [ ], two deep
# One operand: a number, or a name with members, calls and subscripts.
OPERAND = rf"(?:\d[\w.]*|(?:{NAME}(?:::|\.|->))*{NAME}{GROUP}*(?:(?:\.|->){NAME}{GROUP}*)*)"
BINARY = re.compile(rf"(?<![\w.>:)\]*&!~-])(?P<left>{OPERAND}) (?P<sign>-|/|<=|>=|<|>) (?P<right>{OPERAND})(?![\w(\[.<])(?!->|::)")
LOOP_BEGIN = re.compile(rf"\bfor \((?:const )?[\w:]+ {NAME} = (?P<zero>0);")
CONDITION = re.compile(r"\bif (?:constexpr )?\(")
CALL = re.compile(rf"(?P<call>(?:{NAME}(?:<[\w:, ]*>)?(?:::|\.|->|{GROUP}(?:\.|->)))*{NAME})\(")
KEYWORDS = {"return", "if", "for", "while", "switch", "throw", "delete", "new", "case", "goto", "else", "do", "using", "typedef", "static_assert",
            "sizeof", "alignas", "decltype", "catch", "operator", "template", "co_return", "requires", "explicit", "noexcept"}


@dataclasses.dataclass(frozen=True, order=True)
class Mutant:
    """text[begin:end] of a file becomes `after`."""
    begin: int
    end: int
    after: str
    kind: str

    def apply(self, text):
        return text[:self.begin] + self.after + text[self.end:]

    def line(self, text):
        return text.count("\n", 0, self.begin) + 1


def closing(text, begin):
    """The place behind the bracket that closes the one at `begin`, or -1."""
    depth = 0
    for place in range(begin, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth == 0:
            return place + 1
    return -1


def masked(text):
    """The text with blanks where nothing may be mutated; of a literal a name stays, so that calls keep their form."""
    def blank(match):
        piece = re.sub(r"[^\n]", " ", match.group())
        literal = match.lastgroup in ("text", "raw", "delimiter")
        return "_" + piece[1:-1].replace("\n", " ") + "_" if literal else piece
    code = SKIPPED.sub(blank, text)
    for match in MACRO_CALL.finditer(code):
        end = closing(code, match.end() - 1)
        if end > 0:
            code = code[:match.start()] + re.sub(r"[^\n]", " ", code[match.start():end]) + code[end:]
    return code


def calls(code):
    """Statements `name(...);`, not declarations, whose type has a name of its own before them."""
    for match in CALL.finditer(code):
        before = code[max(0, match.start() - 400):match.start()].rstrip()
        first = re.match(NAME, match["call"])[0]
        starts = before.endswith((";", "{", "}", ")")) or re.search(r"\belse$", before)
        if not starts or before.endswith("(void)") or first in KEYWORDS or re.fullmatch(r"[A-Z]\w*", match["call"]):
            continue
        end = closing(code, match.end() - 1)
        while end > 0 and (more := re.compile(rf"\s*(?:\.|->){NAME}\(").match(code, end)):
            end = closing(code, more.end() - 1)
        if end > 0 and code[end:end + 1] == ";":
            yield Mutant(match.start(), end + 1, "{}", "call")


def comparisons_and_differences(code, text):
    for match in BINARY.finditer(code):
        left, sign, right = (text[slice(*match.span(name))] for name in ("left", "sign", "right"))
        if match["left"] in KEYWORDS:
            continue
        if sign in ("-", "/", "<", "<=") and left != right:
            yield Mutant(match.start(), match.end(), f"{right} {sign} {left}", "operands")
        if sign not in ("-", "/"):
            other = sign[0] if sign.endswith("=") else sign + "="
            yield Mutant(*match.span("sign"), other, "bound")
            step = "-" if other.startswith("<") == other.endswith("=") else "+"  # the way that the other sign does not go
            yield Mutant(*match.span("right"), f"{right} {step} 1", "bound")
    for match in LOOP_BEGIN.finditer(code):
        yield Mutant(*match.span("zero"), "1", "bound")


def conditions(code, text):
    for match in CONDITION.finditer(code):
        end = closing(code, match.end() - 1) - 1
        begin = max(match.end(), code.rfind(";", match.end(), end) + 1)  # behind an initialisation
        if end < begin or re.search(r"[^=!<>]=[^=]", code[begin:end]):
            continue
        space = " " if code[begin] == " " else ""
        yield Mutant(begin, end, f"{space}!({text[begin:end].strip()})", "condition")


def names(code):
    for kind, prefix, group in NAMES:
        for match in re.finditer(rf"{prefix}(?P<name>{'|'.join(group)})\b", code):
            is_call = code[match.end():match.end() + 1] == "("
            if is_call != (group[0] in ("all_gather", "sum")) or code[:match.start()].endswith("case "):
                continue
            for other in group:
                if other != match["name"]:
                    yield Mutant(*match.span("name"), other, kind)


def mutants(text):
    """All of a file, in the order of their places."""
    code = masked(text)
    assert len(code) == len(text)
    return sorted({*calls(code), *comparisons_and_differences(code, text), *conditions(code, text), *names(code)})
