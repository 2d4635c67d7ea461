# SPDX-License-Identifier: MIT
"""Every message that docs/reference/errors.md quotes still occurs in the sources.

Usage: errors.py ROOT. Prints one line per piece of a message that no string literal contains, and exits 1 when there is any.
A message is the first cell of a row of a table whose head says "message"; what stands between its … is looked for.
"""
import pathlib
import re
import sys

PAGE = "docs/reference/errors.md"
LITERALS = re.compile(r'"((?:[^"\\\n]|\\.)*)"(?:\s*"((?:[^"\\\n]|\\.)*)")*')
ONE = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
LEAST = 4  # characters of a piece; shorter ones say nothing


def texts(root: pathlib.Path) -> str:
    """All string literals, neighbours joined as the compiler does, one a line."""
    found = []
    for top in ("lib", "backends", "include", "examples", "python"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix in (".cpp", ".h", ".cu"):
                text = re.sub(r"^\s*//.*$", "", file.read_text(encoding="utf-8"), flags=re.M)
                for match in LITERALS.finditer(text):
                    joined = "".join(ONE.findall(match.group()))
                    found.append(joined.replace('\\"', '"').replace("\\\\", "\\"))
    return "\n".join(found)


def quoted(page: str) -> list[str]:
    messages, inside = [], False
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")] if line.startswith("|") else []
        if not cells:
            inside = False
        elif cells[0] == "message":
            inside = True
        elif inside and not set(line) <= set("|- "):
            messages.append(cells[0])
    return messages


def problems(root: pathlib.Path) -> list[str]:
    messages = quoted((root / PAGE).read_text(encoding="utf-8"))
    known, wrong = texts(root), []
    if not messages:
        wrong.append(f"{PAGE} quotes no message")
    for message in messages:
        if not re.fullmatch(r"`[^`]+`", message):
            wrong.append(f"{PAGE}: {message} is not one text between backticks")
            continue
        pieces = [piece.strip() for piece in message[1:-1].split("…")]
        pieces = [piece for piece in pieces if len(piece) >= LEAST]
        if not pieces:
            wrong.append(f"{PAGE}: {message} has no piece of {LEAST} characters")
        wrong += [f"{PAGE}: {message}: no message has '{piece}'" for piece in pieces if piece not in known]
    return wrong


if __name__ == "__main__":
    complaints = problems(pathlib.Path(sys.argv[1]))
    print("\n".join(complaints) or f"the sources have every message of {PAGE}")
    sys.exit(1 if complaints else 0)
