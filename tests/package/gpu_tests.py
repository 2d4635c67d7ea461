# SPDX-License-Identifier: MIT
"""scripts/gpu_tests.py: what it packs of a build, and that entries have GPUs of their own, time limits and results.

Usage: gpu_tests.py SOURCE_ROOT
"""
import json
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(sys.argv[1]).resolve()
SCRIPT = SOURCE / "scripts/gpu_tests.py"
failures = []


def that(condition, what):
    if not condition:
        failures.append(what)
        print(f"FAILED: {what}")


def pack(build, out):
    return subprocess.run([sys.executable, "-B", SCRIPT, "pack", build, out], capture_output=True, text=True, check=False)


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


with tempfile.TemporaryDirectory() as folder:
    build, out = pathlib.Path(folder, "build").resolve(), pathlib.Path(folder, "out").resolve()
    bin_folder = build / "bin"
    entries = {"quick": (1, 'echo "$1 $CUDA_VISIBLE_DEVICES" >>$0.used; sleep 0.3; echo "$1 end" >>$0.used', ""),
               "wide": (2, 'test "$CUDA_VISIBLE_DEVICES" = 0,1 && test "$MODE" = x', "MODE=x"), "bad": (1, "exit 3", ""), "long": (1, "trap 'echo asked >$0.end; exit 1' TERM; sleep 60 & wait", ""),
               "absent": (1, "exit 77", ""), "large": (4, "exit 0", "")}
    tests = ""
    for name, (gpus, text, environment) in entries.items():
        program(bin_folder / name, text)
        again = ["_1", "_2", "_3", "_4"] if name == "quick" else [""]
        for suffix in again:
            tests += (f'add_test("{name}{suffix}" "{bin_folder}/needs_gpus" "{gpus}" "{bin_folder}/{name}" "{suffix}")\n'
                      f'set_tests_properties("{name}{suffix}" PROPERTIES LABELS "gpu" TIMEOUT {2 if name == "long" else 30} ENVIRONMENT "{environment}")\n')
    tests += f'add_test("unit" "{bin_folder}/unit")\nset_tests_properties("unit" PROPERTIES LABELS "unit")\n'
    tests += f'add_test("script" "{sys.executable}" "-B" "{SOURCE}/tests/support/start_ranks.py" "1" "true")\nset_tests_properties("script" PROPERTIES LABELS "gpu")\n'
    (build / "CTestTestfile.cmake").write_text(tests)
    refused = pack(build, out)
    that(refused.returncode == 1 and "not built" in refused.stderr, f"a program that is not built: {refused}")
    program(bin_folder / "needs_gpus", "shift; exec \"$@\"")
    packed = pack(build, out)
    that(packed.returncode == 0, f"{packed}")
    names = {entry["name"]: entry for entry in json.loads((out / "entries.json").read_text())}
    that(len(names) == 10 and "unit" not in names and names["wide"]["gpus"] == 2, f"{sorted(names)}")
    that(str(build) not in (out / "entries.json").read_text(), "no path of the build is left")
    for path in (bin_folder / name for name in entries):
        path.unlink()  # the packed ones are used

    def run(*flags):
        return subprocess.run([sys.executable, "-B", out / "run", *flags], capture_output=True, text=True, check=False)

    done = run("--gpus", "2", "--limit", "60")
    text = done.stdout + done.stderr
    that(done.returncode == 1 and "6 passed, 1 skipped, 2 not passed, 1 need more GPUs" in text, text)
    that("failed (3): bad" in text and "stopped after 2 s: long" in text, text)
    that((out / "bin/long.end").exists(), "what is stopped may end what it has started")
    used = (out / "bin/quick.used").read_text().split("\n")[:-1]
    at_work = {}
    for line in used:
        name, what = line.split()
        if what == "end":
            at_work.pop(name)
        else:
            that(what in ("0", "1") and what not in at_work.values(), f"two entries on one GPU: {used}")
            at_work[name] = what
    that(len(used) == 8, f"{used}")
    good = run("--gpus", "2", "wide", "quick")
    that(good.returncode == 0 and "5 passed" in good.stdout, f"{good}")
    over = run("--gpus", "1", "--limit", "1.5", "quick")
    that(over.returncode == 1 and "not run" in over.stdout, f"after the limit: {over}")
    first = run("--gpus", "1", "--limit", "60", "quick", "long")
    that(first.stdout.partition("\n")[0].endswith(" long"), f"the least time limit comes first: {first}")
    none = run("--gpus", "2", "nothing")
    that(none.returncode == 1 and "no entry's name" in none.stderr, f"{none}")
    listed = run("--list")
    that(listed.returncode == 0 and len(listed.stdout.splitlines()) == 10, f"{listed}")

print(f"{len(failures)} checks failed")
sys.exit(1 if failures else 0)
