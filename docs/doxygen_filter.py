#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What docs/Doxyfile reads of a header, line for line: comments as Doxygen wants them, code as it is.

A comment counts for every variable of its line, indented lines are shown as they stand, and
<words> between angle brackets are text.
"""
import re
import sys

TRAILING = "///<"
# Without words of its own the namespace, and so its functions, would have no page.
NAMESPACE = "\n@namespace tessera\n@brief Everything of the library.\n"


def split(text: str) -> list[str]:
    """At commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "<({[") - (c in ">)}]")
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return parts + [text[start:]]


def declarators(code: str) -> list[str] | None:
    """One declaration for each variable of a line that has several."""
    match = re.fullmatch(r"(\s*)((?:[\w:]+(?:<.*>)? )+)(\w+\b(?:(?!\().)*);", code)
    if not match or "(" in code.split("=")[0] or match[2].strip() in ("return", "using"):
        return None
    parts = split(match[3])
    if len(parts) < 2 or not all(re.match(r"\s*\w+\s*(=|\{|$)", part) for part in parts):
        return None
    return [match[2] + part.strip() + ";" for part in parts]


def text_of(comment: str) -> str:
    return re.sub(r"(?<![`\w])<([a-z_]+)>|(?<=-)<([a-z_]+)>",
                  lambda m: rf"\<{m[1] or m[2]}\>", comment)


def blocks(lines: list[str]) -> list[str]:
    """Indented lines of a comment as they stand."""
    out = list(lines)
    inside = False
    for i, line in enumerate(lines):
        shown = re.match(r"\s*/// {3}\S", line) is not None
        if shown and not inside:
            out[i] = line.replace("/// ", "/// @verbatim ", 1)
        if inside and not shown:
            out[i - 1] += " @endverbatim"
        inside = shown
        if not shown:
            out[i] = text_of(line) if "///" in line else line
    return out


def filtered(lines: list[str]) -> list[str]:
    lines = blocks(lines)
    out, i = [], 0
    while i < len(lines):
        line = lines[i]
        if line.strip().startswith("//"):
            out.append(line)
            i += 1
            continue
        used = 1
        code, _, trailing = line.partition(TRAILING)
        if not trailing and re.search(r",$", code) and i + 1 < len(lines) and "(" not in code:
            code, used = code + " " + lines[i + 1].strip(), 2
        while trailing and i + used < len(lines) and lines[i + used].strip().startswith(TRAILING):
            trailing += lines[i + used].strip()[len(TRAILING):]
            used += 1
        parts = declarators(code.rstrip())
        if parts is None:
            out.append(line)
            i += 1
            continue
        if not trailing:  # the comment above is the first one's
            above = []
            for before in reversed(lines[:i]):
                if not before.strip().startswith("///"):
                    break
                above.insert(0, before.strip()[3:])
            trailing = " ".join(above)
            comments = [""] + [f" /**<{trailing} */"] * (len(parts) - 1)
        else:
            comments = [f" /**<{trailing} */"] * len(parts)
        out.append(" ".join(p + (c if c.strip("/*< ") else "") for p, c in zip(parts, comments)))
        out.extend([""] * (used - 1))
        i += used
    return out


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    if sys.argv[1].endswith(".md"):  # the first page, which lies in the site's folder api
        print(re.sub(r"\[([^\]]+)\]\(([\w-]+)\.md\)", r'<a href="../library/\2.html">\1</a>', text) + NAMESPACE)
    else:
        print("\n".join(filtered(text.split("\n"))))
