# SPDX-License-Identifier: MIT
"""bench_strategies --profile: phases that sum to the step, a table, lines for programs, and bad values.

Usage: profile.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import json

from support import MPIRUN, Checker, launch

check = Checker()
MARK = "TESSERA "
PHASES = ["forward_s", "backward_s", "communication_s", "optimizer_s", "data_s", "host_wait_s", "other_s"]


def bench(*flags, ranks=0):
    return launch("bench_strategies", ["--max_steps", "2", "--warmup", "1", *flags], mpi_ranks=ranks)


def lines_of(run):
    return [json.loads(line[len(MARK):]) for line in run.text.splitlines() if line.startswith(MARK)]


def check_profile(name, run, rows):
    check.that(run.code == 0, name, run)
    lines = lines_of(run)
    profiles = [line for line in lines if "profile" in line]
    check.that(len(lines) == 2 * rows and len(profiles) == rows, f"{name}: {len(lines)} lines, {len(profiles)} profiles", run)
    for line in profiles:
        check.that(list(line["phases"]) == PHASES, f"{name}: {line['phases']}")
        check.that(all(phase >= 0 for phase in line["phases"].values()), f"{name}: {line['phases']}")
        check.that(abs(sum(line["phases"].values()) - line["step_s"]) <= 0.01 * line["step_s"],
                   f"{name}: {line['phases']} sum to {line['step_s']}")
        for phase in ("forward_s", "backward_s", "optimizer_s"):
            check.that(line["phases"][phase] > 0, f"{name}: {phase} {line['phases']}")
        # Operators of one thread and what is in none.
        whole = sum(row["s"] for row in line["operators"]) + line["rest_s"]
        check.that(abs(whole - line["profiled_step_s"]) <= 0.01 * line["profiled_step_s"],
                   f"{name}: operators {whole} of {line['profiled_step_s']}")
        others = line["operators"][-1]
        check.that(others["name"] == "others" and others["flops"] is None, f"{name}: {others}")
        check.that(all(row["share_ratio"] >= 0.01 for row in line["operators"][:-1]), f"{name}: below 1 %")
        check.that(any(row["flops"] for row in line["operators"] if row["name"] == "aten::mm"), f"{name}: no product")
        check.that(all(row["ceiling_ratio"] is None for row in line["operators"]), f"{name}: ceilings of a CPU")
    return profiles


run = bench("--profile", "--strategy", "single,zero2")
for text in ("operator", "operation", "calls", "share", "GFLOP", "of ceiling", "(in no operator)"):
    check.that(text in run.text, f"'{text}' is not there", run)
check_profile("two rows", run, rows=2)
check_profile("as in a run", bench("--profile", "true", "--sync", "false"), rows=1)
if MPIRUN:
    profiles = check_profile("two ranks", bench("--profile", "--strategy", "zero2", ranks=2), rows=1)
    check.that(all(line["world"] == 2 and line["phases"]["communication_s"] > 0 for line in profiles), f"{profiles}")

plain = bench()
check.that(plain.code == 0 and len(lines_of(plain)) == 1 and "operator" not in plain.text, "no --profile", plain)
wrong = bench("--profile", "maybe")
check.that(wrong.code == 2 and "maybe" in wrong.text and wrong.text.count("\n") == 1,
           "--profile maybe", wrong)
check.finish()
