"""Writes lib/data/unicode_tables.cpp: the code points that \\p{L}, \\p{N} and \\s match in Hugging Face tokenizers.

The tables are read off the `tokenizers` package itself, so that pre-tokenisation agrees with it for every code point.
Usage: make_unicode_tables.py > lib/data/unicode_tables.cpp
"""
import tokenizers
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

POINTS = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]


def matched(pattern):
    """The code points that a one-character pattern matches."""
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


def table(name, points):
    cells = [f"{{0x{a:X}, 0x{b:X}}}," for a, b in ranges(points)]
    lines, line = [], "   "
    for cell in cells:
        if len(line) + 1 + len(cell) > 100:
            lines.append(line)
            line = "   "
        line += " " + cell
    lines.append(line)
    return f"const CodePointRange {name}[] = {{\n" + "\n".join(lines) + "\n};\n" + \
        f"const size_t {name}Size = {len(cells)};\n"


print(f"// Made by scripts/make_unicode_tables.py from tokenizers {tokenizers.__version__}; do not edit.\n"
      "// clang-format off\n"
      '#include "lib/data/unicode.h"\n\nnamespace tessera {\n')
for name, pattern in (("kLetters", r"\p{L}"), ("kNumbers", r"\p{N}"), ("kWhiteSpace", r"\s")):
    print(table(name, matched(pattern)))
print("}  // namespace tessera")
