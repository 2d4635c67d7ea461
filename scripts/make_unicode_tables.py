# SPDX-License-Identifier: MIT
"""Writes the tables of code points that lib/data asks about, read off the programs with which it has to agree.

Usage: make_unicode_tables.py tokenizers > lib/data/generated/unicode_tables.cpp   (\\p{L}, \\p{N} and \\s of Hugging Face tokenizers)
       make_unicode_tables.py python > lib/data/generated/python_tables.cpp        (Python's str: lower(), split(), \\w)
       make_unicode_tables.py case > lib/data/generated/python_case_tables.cpp     (Python's str: upper(), title(), repr())
       make_unicode_tables.py letters > lib/data/generated/letter_tables.cpp       (\\p{Lu} and \\p{Lt}, \\p{Ll}, \\p{M} of the same)
       make_unicode_tables.py nfc > lib/data/generated/nfc_tables.cpp              (the normalizer NFC of Hugging Face tokenizers)
       make_unicode_tables.py word > lib/data/generated/word_table.cpp             (what may not stand beside its tokens of single_word)
"""
import sys
import textwrap
import unicodedata

POINTS = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]


def matched(pattern):
    """The code points that a one-character pattern of `tokenizers` matches."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split
    text = "".join(map(chr, POINTS))
    pieces = Split(Regex(pattern + "+"), "isolated").pre_tokenize_str(text)
    found = set()
    # Pieces alternate between matches and gaps; the first one is decided by asking about its first character.
    for piece, _ in pieces:
        alone = Split(Regex(pattern), "removed").pre_tokenize_str(piece[0])
        if not alone:
            found.update(map(ord, piece))
    return found


def ranges(points):
    result = []
    for p in sorted(points):
        if result and result[-1][1] == p - 1:
            result[-1][1] = p
        else:
            result.append([p, p])
    return result


def case_runs(change):
    """[first, last, step, difference]: code points that `change`, lower or upper, moves by the same difference."""
    runs = []
    for p in POINTS:
        changed = change(chr(p))
        if changed == chr(p) or len(changed) > 1:
            continue
        difference = ord(changed) - p
        if runs and runs[-1][3] == difference and p - runs[-1][1] in (1, 2):
            first, last, step, _ = runs[-1]
            if first == last or p - last == step:
                runs[-1][1:3] = [p, p - last]
                continue
        runs.append([p, p, 1, difference])
    return runs


def combining_class(point, nfd):
    """Python's, where `tokenizers` knows that the code point has one: it then moves over a neighbour."""
    wanted = unicodedata.combining(chr(point))
    other = 220 if wanted == 1 else 1
    pair = chr(point) + chr(0x0334) if other == 1 else chr(0x0316) + chr(point)
    return wanted if wanted and nfd(pair) == pair[::-1] else 0


def nfc_tables():
    """Decompositions in one step and classes of Python's Unicode, as far as `tokenizers` knows them."""
    from tokenizers.normalizers import NFC, NFD
    nfc, nfd = NFC().normalize_str, NFD().normalize_str
    steps, last, classes, unsafe = [], 0, [], set()
    for p in POINTS:
        if 0xAC00 <= p <= 0xD7A3:
            continue  # Hangul is computed
        c = chr(p)
        if kind := combining_class(p, nfd):
            unsafe.add(p)
            if classes and classes[-1][1:] == [p - 1, kind]:
                classes[-1][1] = p
            else:
                classes.append([p, p, kind])
        if nfd(c) != c:
            parts = [int(part, 16) for part in unicodedata.decomposition(c).split()]
            composes = len(parts) == 2 and nfc(nfd(c)) == c
            steps.append((f"{p:X}=" if p != last + 1 else "") + "+".join(f"{part:X}" for part in parts) + ("" if composes or len(parts) == 1 else "!"))
            last = p
            unsafe.update([parts[1]] if composes else [p])
    unsafe.update(range(0x1161, 0x1176), range(0x11A8, 0x11C3))
    lines = textwrap.wrap(" ".join(steps), 93)
    print("const char kDecompositions[] =\n" + "\n".join(f'    "{line} "' for line in lines) + ";\n")
    print(cells_table("CombiningClass", "kCombiningClasses", [f"{{0x{a:X}, 0x{b:X}, {kind}}}," for a, b, kind in classes]))
    print(table("kChangedByNfc", unsafe))


def word_points():
    """The code points beside which a token of single_word is not found."""
    from tokenizers import AddedToken, Tokenizer, models
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens([AddedToken("<w>", single_word=True, normalized=False)])
    return [p for p in POINTS if not tokenizer.encode(chr(p) + "<w>").ids]


def sigma_ends_after(text):
    """Whether lower() makes the final form of a sigma that follows this text and ends the word."""
    return (text + "\u03a3").lower().endswith("\u03c2")


def cells_table(kind, name, cells):
    lines, line = [], "   "
    for cell in cells:
        if len(line) + 1 + len(cell) > 100:
            lines.append(line)
            line = "   "
        line += " " + cell
    lines.append(line)
    return f"const {kind} {name}[] = {{\n" + "\n".join(lines) + f"\n}};\nconst size_t {name}Size = {len(cells)};\n"


def table(name, points):
    return cells_table("CodePointRange", name, [f"{{0x{a:X}, 0x{b:X}}}," for a, b in ranges(points)])


def run_cells(change):
    return [f"{{0x{a:X}, 0x{b:X}, {s}, {d}}}," for a, b, s, d in case_runs(change)]


def literal(text):
    return '"' + "".join(f"\\x{byte:02X}" for byte in text.encode()) + '"'


def header(made_from):
    return (f"// SPDX-License-Identifier: MIT\n// Made by scripts/make_unicode_tables.py from {made_from}; do not edit.\n"
            '// clang-format off\n#include "lib/data/unicode.h"\n\nnamespace tessera {\n')


def main(kind):
    patterns = {"tokenizers": {"kLetters": r"\p{L}", "kNumbers": r"\p{N}", "kWhiteSpace": r"\s"},
                "letters": {"kUpperLetters": r"[\p{Lu}\p{Lt}]", "kLowerLetters": r"\p{Ll}", "kMarks": r"\p{M}"}}
    if kind in patterns:
        import tokenizers
        print(header(f"tokenizers {tokenizers.__version__}"))
        for name, pattern in patterns[kind].items():
            print(table(name, matched(pattern)))
    elif kind in ("nfc", "word"):
        import tokenizers
        print(header(f"tokenizers {tokenizers.__version__}, Unicode {unicodedata.unidata_version}"))
        nfc_tables() if kind == "nfc" else print(table("kWordPoints", word_points()))
    elif kind == "case":
        print(header(f"Python {sys.version.split()[0]}, Unicode {unicodedata.unidata_version}"))
        print(cells_table("CaseRun", "kUpperRuns", run_cells(str.upper)))
        special = [p for p in POINTS if len(chr(p).upper()) > 1 or chr(p).title() != chr(p).upper()]
        print(cells_table("SpecialCase", "kSpecialCases",
                          [f"{{0x{p:X}, {literal(chr(p).upper())}, {literal(chr(p).title())}}}," for p in special]))
        print(table("kPythonUnprintable", [p for p in POINTS if not chr(p).isprintable()]))
    else:
        print(header(f"Python {sys.version.split()[0]}, Unicode {unicodedata.unidata_version}"))
        # U+0130 alone becomes two.
        print(cells_table("CaseRun", "kLowerRuns", run_cells(str.lower)))
        ignored = [p for p in POINTS if not sigma_ends_after(chr(p)) and sigma_ends_after("A" + chr(p))]
        print(table("kCaseIgnorable", ignored))
        print(table("kCased", [p for p in POINTS if sigma_ends_after(chr(p))]))
        print(table("kPythonAlnum", [p for p in POINTS if chr(p).isalnum()]))
        print(table("kPythonSpace", [p for p in POINTS if not chr(p).split()]))
    print("}  // namespace tessera")


if __name__ == "__main__":
    main(sys.argv[1])
