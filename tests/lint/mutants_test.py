# SPDX-License-Identifier: MIT
"""mutants.py must find a patch without a promise, a promise of two patches, a test that is gone, and rows that are no patches."""
import pathlib
import sys
import tempfile

import cases
import mutants

PATCH = "Group: G\nTitle: t\nPromise: p\nTest: test_a: a case\n\ndiff --git a/a b/a\nPromise: no field of the header\n"
ROW = "| `one` | p | t | `test_a: a case` | 1 == 2 |\n"
CASE = 'TEST_CASE("a case") {}\n'
# (name, patches by name, rows, a test source, a piece of the complaint; None: no complaint)
CASES = [
    ("all is well", {"one": PATCH}, ROW, CASE, None),
    ("an entry without cases", {"one": PATCH.replace("test_a: a case", "programs_a")}, ROW, "", None),
    ("no promise", {"one": PATCH.replace("Promise: p\n", "")}, ROW, CASE, "no line 'Promise: ...'"),
    ("no test", {"one": PATCH.replace("Test: test_a: a case\n", "")}, ROW, CASE, "no line 'Test: ...'"),
    ("one promise twice", {"one": PATCH, "two": PATCH}, ROW + ROW.replace("one", "two"), CASE, "one.patch defends the same promise: p"),
    ("a case that is gone", {"one": PATCH}, ROW, CASE.replace("a case", "another case"), "no test program has the case 'a case'"),
    ("no row", {"one": PATCH}, "", CASE, "RESULTS.md has no row for it"),
    ("no patch", {"one": PATCH}, ROW + ROW.replace("one", "two"), CASE, "a row for two, which is no patch"),
]


def found(patches, rows, source):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "tests/mutants").mkdir(parents=True)
        for name, text in patches.items():
            (root / f"tests/mutants/{name}.patch").write_text(text)
        (root / "tests/mutants/RESULTS.md").write_text(f"# Results\n{rows}<!-- mutants: end -->\n| `old` | | | `x` |\n")
        (root / "tests/a.cpp").write_text(source)
        return list(mutants.violations(root))


sys.exit(cases.check([(name, found(patches, rows, source), expected) for name, patches, rows, source, expected in CASES]))
