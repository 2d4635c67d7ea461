# SPDX-License-Identifier: MIT
"""errors.py must find messages however they are written in the sources, and name those that are gone."""
import pathlib
import sys
import tempfile

import errors

HEAD = "| message | cause | remedy |\n|---|---|---|\n"
# (the first cell of a row, what a source has, a piece of the complaint; None: no complaint)
CASES = [
    ("`unknown flag --…`", 'usage_error("unknown flag --", name);', None),
    ("`give one of --a and --b`", 'fail(kData, "give one "\n     "of --a and --b");', None),
    ("`write \"auto\" in the file`", 'fail("write \\"auto\\" in the file");', None),
    ("`… is …, but has … rows`", 'fail(name, " is ", n, ", but has ", rows, " rows");', None),
    ("`unknown flag --…`", 'usage_error("no such flag --", name);', "no message has 'unknown flag --'"),
    ("`give one of --a and --c`", 'fail("give one of --a and --b");', "no message has"),
    ("`a message that is gone`", '// "a message that is gone"\n', "no message has"),
    ("unknown flag", 'usage_error("unknown flag --", name);', "not one text between backticks"),
    ("`…: …`", 'usage_error("unknown flag --", name);', "has no piece"),
]

failures = []
for cell, source, wanted in CASES:
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in ((errors.PAGE, f"{HEAD}| {cell} | a cause | a remedy |\n"), ("lib/core/a.cpp", source)):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        said = errors.problems(root)
        if (wanted is None) != (not said) or (wanted and not any(wanted in line for line in said)):
            failures.append(f"{cell} beside {source!r}: {said}, not {wanted}")
with tempfile.TemporaryDirectory() as folder:
    (pathlib.Path(folder) / errors.PAGE).parent.mkdir(parents=True)
    (pathlib.Path(folder) / errors.PAGE).write_text("| exit code | meaning |\n|---|---|\n| 0 | success |\n")
    if not errors.problems(pathlib.Path(folder)):
        failures.append("a page without messages passes")
print("\n".join(failures) or f"{len(CASES) + 1} cases")
sys.exit(1 if failures else 0)
