# SPDX-License-Identifier: MIT
"""Every benchmark of the CPU runs once with sizes as small as it takes, says its own name, and shows its own flags beside Google Benchmark's.

Usage: benchmarks.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import os
import subprocess
import tempfile

from support import BIN, DATA, Checker

check = Checker()
SHORT = "--benchmark_min_time=0.0001"
TINY = ["--model_config", "bloom-tiny", "--max_seq_length", "16", "--per_device_train_batch_size", "1", "--max_steps", "1", "--warmup", "1"]
# What it runs with, and a flag of its own; none: it has only Google Benchmark's.
PROGRAMS = {
    "bench_checkpoint": (["--mebibytes", "1", "--ranks", "2"], "--mebibytes"),
    "bench_collectives": (["--ranks", "2", SHORT], "--ranks"),
    "bench_data": (["--tokenizer", DATA / "tokenizer", "--questions", "20", SHORT, "--benchmark_filter=-wait_in_16ms"], "--questions"),
    "bench_fp8": ([SHORT, "--benchmark_filter=cpu"], None),
    "bench_generation": (["--prompts", "2", "--longest", "8", "--max_new_tokens", "2", "--iterations", "1"], "--max_new_tokens"),
    "bench_host_adamw": ([SHORT, "--benchmark_filter=threads:1/"], None),
    "bench_host_cost": (["--blocks", "2", SHORT, "--benchmark_filter=ranks:[12]/"], "--blocks"),
    "bench_ops": ([SHORT, "--benchmark_filter=cpu"], None),
    "bench_strategies": ([*TINY, "--strategy", "single"], "--strategy"),
}


def run(program, *arguments):
    done = subprocess.run([BIN / program, *map(str, arguments)], capture_output=True, timeout=900, env={**os.environ, "TMPDIR": folder})
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


with tempfile.TemporaryDirectory(prefix="tessera_benchmarks_") as folder:
    for program, (arguments, own) in PROGRAMS.items():
        code, out, err = run(program, *arguments)
        check.that(code == 0, f"{program}: exit {code}\n{out[-800:]}{err[-2000:]}")
        check.that(f"Running {BIN / program}\n" in err, f"{program} says its name\n{err[:300]!a}")
        check.that("Iterations" in out and "ERROR" not in out, f"{program} has rows\n{out[-800:]}")
        code, out, err = run(program, "--help")
        check.that(code == 0 and (own is None or own in out), f"{program} --help shows {own}: exit {code}\n{out[:400]}")
        check.that(program == "bench_strategies" or "--benchmark_filter" in out, f"{program} --help shows Google Benchmark's flags\n{out[:400]}")
        if own is not None:
            code, out, err = run(program, "--no_such_flag", "1")
            check.that(code == 2 and "no_such_flag" in err, f"{program}: an unknown flag: exit {code}\n{err[:400]}")
check.finish()
