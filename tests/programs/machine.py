# SPDX-License-Identifier: MIT
"""benchmarks/machine.sh: every command it has is one that bench_strategies takes; its table; its endings.

Usage: machine.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import os
import pathlib
import subprocess
import tempfile

from support import BIN, ROOT, Checker

check = Checker()
SCRIPT = ROOT / "benchmarks" / "machine.sh"
BENCH = """#!/bin/sh
case "$*" in *"--rows packed --supervise"*) echo no room; exit 3;; esac
echo 'TESSERA {"model": "bloom-560m", "mode": "ddp", "mesh": "1x2x1", "variant": "", "mb": 16, "seq": 512, "accum": 4, "world": 2, "step_ms": 100.0}'
echo 'TESSERA {"model": "bloom-560m", "mode": "ddp", "mesh": "1x1x2", "variant": "tp", "mb": 16, "seq": 512, "accum": 1, "world": 2, "step_ms": 40.0}'
"""


def machine(*arguments, **environment):
    run = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, env={**os.environ, **environment})
    return run.returncode, run.stdout, run.stderr


code, listed, _ = machine("--list", "one")
parts = listed.split()
check.that(code == 0 and "one_rates" in parts and "two_data" in parts, f"parts: {parts}")
commands = machine("--dry-run", "one", "two")[1].splitlines()
benches = [line[line.index("bench_strategies"):].split() for line in commands if "bench_strategies" in line]
check.that(len(benches) > 30, f"{len(benches)} commands")
for program, *flags in benches:
    run = subprocess.run([BIN / program, *flags, "--help"], capture_output=True, text=True)
    check.that(run.returncode == 0, f"{' '.join(flags)}: {run.stderr}")
code, _, error = machine("three")
check.that(code == 2 and "'three'" in error and "one_rates" in error, f"an unknown part: {code} {error}")
check.that(machine()[0] == 2, "no part")
with tempfile.TemporaryDirectory() as folder:
    program = pathlib.Path(folder) / "bench_strategies"
    program.write_text(BENCH)
    program.chmod(0o755)
    code, table, error = machine("one_rows", TESSERA_BIN=folder, OUT_DIR=folder)
    kept = (pathlib.Path(folder) / "one_rows.txt").read_text()
rows = table.splitlines()
check.that(code == 0 and len(rows) == 2 + 2 * 2 + 1, f"{code}: {table}{error}")
check.that(rows[2] == "| bloom-560m 16 x 512 x 4 | 1x2x1 | ddp  | 100.0 | 327.7k |", rows[2])
check.that(rows[3] == "| bloom-560m 16 x 512 | 1x1x2 | ddp tp | 40.0 | 102.4k |", rows[3])
check.that(rows[6].startswith("| failed: bench_strategies ") and "no room" in kept, f"{rows[6]} {kept}")
check.finish()
