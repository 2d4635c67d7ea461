# SPDX-License-Identifier: MIT
"""Checks tests/mutants: every patch says group, title, promise and test; a promise has one patch; the test is there; RESULTS.md has a row for each.

Usage: mutants.py ROOT. Prints one line per violation and exits 1 when there is any. Whether patches apply, scripts/mutants.sh --check says.
"""
import pathlib
import re
import sys

FIELDS = ("Group", "Title", "Promise", "Test")


def header(text):
    return dict(re.findall(rf"^({'|'.join(FIELDS)}): *(.*)$", text.split("diff --git", 1)[0], re.MULTILINE))


def violations(root):
    folder = root / "tests/mutants"
    sources = "\n".join(file.read_text(encoding="utf-8") for file in sorted((root / "tests").rglob("*.cpp")))
    rows = re.findall(r"^\| `([^`]+)` \|.*\| `(?:[^`]+)` \|", (folder / "RESULTS.md").read_text(encoding="utf-8").split("<!-- mutants: end -->")[0], re.MULTILINE)
    promises = {}
    patches = sorted(folder.glob("*.patch"))
    for patch in patches:
        fields = header(patch.read_text(encoding="utf-8"))
        for field in FIELDS:
            if not fields.get(field):
                yield f"{patch.name}: no line '{field}: ...'"
        promise, test = fields.get("Promise"), fields.get("Test", "")
        if promise in promises:
            yield f"{patch.name}: {promises[promise]} defends the same promise: {promise}"
        promises.setdefault(promise, patch.name) if promise else None
        if ": " in test and f'"{test.split(": ", 1)[1]}"' not in sources:
            yield f"{patch.name}: no test program has the case '{test.split(': ', 1)[1]}'"
        if patch.stem not in rows:
            yield f"{patch.name}: RESULTS.md has no row for it; scripts/mutants.sh --table writes it"
    for row in sorted(set(rows) - {patch.stem for patch in patches}):
        yield f"RESULTS.md has a row for {row}, which is no patch"


def main():
    found = list(violations(pathlib.Path(sys.argv[1])))
    print("\n".join(found) if found else "each promise has its planted defect, and each defect its test")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
