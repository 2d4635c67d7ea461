# SPDX-License-Identifier: MIT
"""Writes what scripts/mutants.sh found into tests/mutants/RESULTS.md, between its two markers.

Usage: mutants_table.py PATCH_FOLDER RESULT_FOLDER DOCUMENT. Patches without a result keep the row they have in the document.
"""
import pathlib
import re
import sys

BEGIN, END = "<!-- mutants: begin -->\n", "<!-- mutants: end -->\n"


def header(patch):
    text = patch.read_text().split("diff --git", 1)[0]
    return dict(re.findall(r"^(Group|Title|Test): *(.*)$", text, re.M))


def result_of(path):
    """(result, what was seen), or None."""
    if not path.exists():
        return None
    _, _, result, _, seen = path.read_text().rstrip("\n").split("\t")
    return result, seen


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def main():
    patches, results, document = map(pathlib.Path, sys.argv[1:])
    text = document.read_text()
    head, rest = text.split(BEGIN)
    old, tail = rest.split(END)
    known = dict(re.findall(r"^\| `([^`]+)` (\|.*)$", old, re.M))
    groups, count, killed = {}, 0, 0
    for patch in sorted(patches.glob("*.patch")):
        fields, result = header(patch), result_of(results / patch.stem)
        row = f"| {cell(fields['Title'])} | `{fields['Test']}` | "
        if result is not None:
            row += cell(": ".join(filter(None, result if result[0] != "killed" else ("", result[1])))) or "fails"
            row += " |"
        else:
            row = known.get(patch.stem, row + "not run |")
        count += 1
        killed += result is not None and result[0] == "killed"
        groups.setdefault(fields["Group"], []).append(f"| `{patch.stem}` {row}")
    lines = []
    for group, rows in groups.items():
        lines += [f"### {group}", "", "| patch | planted defect | killed by | first difference |", "|---|---|---|---|", *rows, ""]
    document.write_text(head + BEGIN + "\n".join(lines) + END + tail)
    print(f"{document}: {count} mutants, {killed} with a fresh kill")


if __name__ == "__main__":
    main()
