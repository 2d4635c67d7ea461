# SPDX-License-Identifier: MIT
"""scripts/format.py is red for a planted tab and a long line, mends them, and takes no other version of clang-format.

Usage: format_test.py ROOT [--required].
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1]).resolve()
GOOD = "// SPDX-License-Identifier: MIT\nint twice(int a) {\n  if (a == 0) f();\n  return 2 * a;\n}\n"
PLANTED = {"a tab": GOOD.replace("  return", "\treturn"), "four blanks": GOOD.replace("  return", "    return"),
           "a long line": GOOD.replace("2 * a", " + ".join(["a"] * 30)), "a brace": GOOD.replace(") {", ")\n{")}
failures = []


def run(root, *words, **environment):
    command = [sys.executable, "-B", ROOT / "scripts/format.py", "--root", root, *words]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environment)
    return process.returncode, process.stdout


def check(what, good, said):
    if not good:
        failures.append(what)
        print(f"FAILED: {what}: {said}")


with tempfile.TemporaryDirectory(prefix="tessera_format_") as folder:
    root = pathlib.Path(folder)
    shutil.copy(ROOT / ".clang-format", root)
    source = root / "lib/core/a.cpp"
    source.parent.mkdir(parents=True)
    source.write_text(GOOD)

    other = root / "bin/clang-format-14"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho clang-format version 19.1.0\n")
    other.chmod(0o755)
    for word, status in ((None, 77), ("--required", 1)):
        code, said = run(root, "--check", *filter(None, [word]), PATH=str(other.parent), CLANG_FORMAT="")
        check(f"another version, {word}", code == status and "no clang-format 14" in said, said)

    code, said = run(root, "--check", *sys.argv[2:])
    if code == 77:
        print(said)
        sys.exit(1 if failures else 77)
    check("a formatted file", code == 0, said)
    for name, text in PLANTED.items():
        source.write_text(text)
        code, said = run(root, "--check")
        check(f"{name} is found", code == 1 and "lib/core/a.cpp:" in said, said)
        run(root)
        check(f"{name} is mended", run(root, "--check")[0] == 0, source.read_text())
        check(f"{name} is mended in place", name == "a long line" or source.read_text() == GOOD, source.read_text())
print(f"{len(failures)} checks failed" if failures else f"the format gate finds and mends {len(PLANTED)} planted defects")
sys.exit(1 if failures else 0)
