# SPDX-License-Identifier: MIT
"""bench_host_cost: what a step asks of a rank's host does not grow with the ranks, and what its flags take.

Usage: host_cost.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import json

from support import Checker, launch

check = Checker()


def rows_of(name, *flags):
    arguments = ["--blocks", "8", "--benchmark_format=json", f"--benchmark_filter={name}", *flags]
    run = launch("bench_host_cost", arguments, environment={"TESSERA_LOG_LEVEL": "error"})
    check.that(run.code == 0, name, run)
    return {row["name"].rsplit("/", 1)[0]: row for row in json.loads(run.text[run.text.index("{\n"):])["benchmarks"]}


rows = rows_of("(ddp|zero3)/ranks:(2|64)/")
check.that(len(rows) == 4, f"{sorted(rows)}")
for strategy in ("ddp", "zero3"):
    few, many = rows[f"{strategy}/ranks:2"], rows[f"{strategy}/ranks:64"]
    # Among 64 ranks blocks share messages.
    check.that(many["pass_launches"] < few["pass_launches"] and many["update_launches"] <= few["update_launches"], f"{few} {many}")
    for what in ("aten", "allocations"):
        check.that(0 < many[what] <= 1.05 * few[what], f"{strategy}: {what} of 2 and 64 ranks: {few[what]} {many[what]}")
alone = rows_of("zero3/ranks:64/", "--coalesce_bytes", "1")["zero3/ranks:64"]
check.that(alone["pass_launches"] == rows["zero3/ranks:2"]["pass_launches"], f"each block alone: {alone} {rows['zero3/ranks:2']}")
for arguments in (["--blocks", "x"], ["--blocks", "0"], ["--wait_us", "-1"], ["--coalesce_bytes", "3k"], ["--list"], ["--nothing", "1"]):
    refused = launch("bench_host_cost", arguments)
    check.that(refused.code == 2 and arguments[0] in refused.text, f"{arguments}", refused)
check.finish()
