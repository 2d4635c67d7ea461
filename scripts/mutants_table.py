# SPDX-License-Identifier: MIT
"""Writes what scripts/mutants.sh found into tests/mutants/RESULTS.md, between its two markers.

Usage: mutants_table.py PATCH_FOLDER RESULT_FOLDER DOCUMENT. Patches without a result keep what the document says was seen.
"""
import pathlib
import re
import sys

BEGIN, END = "<!-- mutants: begin -->\n", "<!-- mutants: end -->\n"


def header(patch):
    text = patch.read_text().split("diff --git", 1)[0]
    return dict(re.findall(r"^(Group|Title|Promise|Test): *(.*)$", text, re.M))


def result_of(path):
    """(result, what was seen), or None."""
    if not path.exists():
        return None
    _, _, result, _, seen = path.read_text().rstrip("\n").split("\t")
    return result, seen


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def cells_of(line):
    """The cells of a row about a patch, or nothing."""
    return re.split(r"(?<!\\)\s*\|\s*", line)[1:-1] if line.startswith("| `") else []


def main():
    patches, results, document = map(pathlib.Path, sys.argv[1:])
    text = document.read_text()
    head, rest = text.split(BEGIN)
    old, tail = rest.split(END)
    known = {row[0].strip("`"): row[-1] for row in map(cells_of, old.splitlines()) if row}
    groups, count, killed = {}, 0, 0
    for patch in sorted(patches.glob("*.patch")):
        fields, result = header(patch), result_of(results / patch.stem)
        if result is not None:
            seen = cell(": ".join(filter(None, result if result[0] != "killed" else ("", result[1])))) or "fails"
        else:
            seen = known.get(patch.stem, "not run")
        row = f"| {cell(fields['Promise'])} | {cell(fields['Title'])} | `{fields['Test']}` | {seen} |"
        count += 1
        killed += result is not None and result[0] == "killed"
        groups.setdefault(fields["Group"], []).append(f"| `{patch.stem}` {row}")
    lines = []
    for group, rows in groups.items():
        lines += [f"### {group}", "", "| patch | promise | planted defect | killed by | first difference |", "|---|---|---|---|---|", *rows, ""]
    document.write_text(head + BEGIN + "\n".join(lines) + END + tail)
    print(f"{document}: {count} mutants, {killed} with a fresh kill")


if __name__ == "__main__":
    main()
