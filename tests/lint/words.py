# SPDX-License-Identifier: MIT
"""Plain words: comments of public headers begin with their noun or verb, and private words stand nowhere that users read.

Usage: words.py ROOT [--pending]. Prints one line per violation and exits 1 when there is any: a comment sentence of a public header
that begins with "Of" or "What"; a word of words.txt in a comment of a public header, a page of documentation or a message; a term
that the glossary names twice.
--pending: only lists where the words marked so stand.
"""
import collections
import pathlib
import re
import sys

import errors

GLOSSARY = "docs/reference/glossary.md"
LIST = pathlib.Path(__file__).parent / "words.txt"
STRINGS = re.compile(r'"(?:[^"\\\n]|\\.)*"')
COMMENT = re.compile(r"//[/!]?<? ?(.*)$")
FENCES = re.compile(r"^ *(```|~~~).*?^ *\1", re.M | re.S)
QUOTED = re.compile(r"`[^`\n]+`|\]\([^)]*\)|<!--.*?-->", re.S)


def words(text: str, pending: bool = False) -> list[tuple[re.Pattern, str]]:
    """(pattern, the field's word) of the lines that are pending, or of those that are not."""
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, instead = line.partition(" = ")
        if not instead:
            raise SystemExit(f"{LIST.name}: '{line}' has no field's word")
        if pattern.startswith("pending ") == pending:
            pattern = pattern.removeprefix("pending ")
            found.append((re.compile(rf"\b(?:{pattern})\b", re.I), instead))
    return found


def comments(text: str) -> list[tuple[int, str]]:
    """(first line, text) of every comment; lines of comments that follow each other are one."""
    found, previous = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        match = COMMENT.search(STRINGS.sub('""', line))
        if not match:
            continue
        alone = line.lstrip().startswith("//")
        if alone and previous == number - 1 and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {match.group(1)}")
        else:
            found.append((number, match.group(1)))
        previous = number
    return found


def read(root: pathlib.Path) -> list[tuple[str, str, str]]:
    """(place, kind, text) of everything that users read."""
    found = []
    for header in sorted((root / "include").rglob("*.h")):
        for line, text in comments(header.read_text(encoding="utf-8")):
            found.append((f"{header.relative_to(root)}:{line}", "header", text))
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if page.exists():
            text = QUOTED.sub("", FENCES.sub("", page.read_text(encoding="utf-8")))
            found.append((str(page.relative_to(root)), "page", text))
    found += [("a message", "message", text) for text in errors.texts(root).splitlines() if " " in text]
    return found


def named_twice(glossary: str) -> list[str]:
    """Terms of the glossary's table; commas and brackets separate the names of a row."""
    rows = [line.split("|")[1] for line in glossary.splitlines() if line.startswith("| ")][1:]
    names = [name.strip(" *").lower() for row in rows for name in re.split(r"[,()]", row)]
    counts = collections.Counter(name for name in names if name and not name.startswith("-"))
    return [f"{GLOSSARY}: '{name}' is named {count} times" for name, count in counts.items() if count > 1]


def problems(root: pathlib.Path, listed: str) -> list[str]:
    known, wrong = words(listed), []
    if (root / GLOSSARY).exists():
        wrong += named_twice((root / GLOSSARY).read_text(encoding="utf-8"))
    for place, kind, text in read(root):
        if kind == "header":
            for sentence in re.split(r"(?<=[.:;])\s+", text):
                if re.match(r"(Of|What)\b", sentence):
                    wrong.append(f"{place}: '{sentence[:60]}' begins with neither a noun nor a verb")
        wrong += uses(place, text, known)
    return wrong


def uses(place: str, text: str, known: list[tuple[re.Pattern, str]]) -> list[str]:
    found = []
    for pattern, instead in known:
        for match in pattern.finditer(text):
            beside = " ".join(text[max(0, match.start() - 30):match.end() + 30].split())
            found.append(f"{place}: '{match.group()}' in '{beside}': {instead}")
    return found


def main() -> int:
    root, listed = pathlib.Path(sys.argv[1]), LIST.read_text(encoding="utf-8")
    if "--pending" in sys.argv[2:]:
        waiting = words(listed, pending=True)
        print("\n".join(use for place, _, text in read(root) for use in uses(place, text, waiting)))
        return 0
    found = problems(root, listed)
    print("\n".join(found) or f"{len(words(listed))} words stand nowhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
