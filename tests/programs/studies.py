# SPDX-License-Identifier: MIT
"""Every study of examples/studies runs small on the CPU, with its tables; one is interrupted and goes on.

Usage: studies.py SOURCE_ROOT BIN_FOLDER
"""
import csv
import json
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile

from support import BIN, ROOT, TIME_LIMIT_S, Checker, Result

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_studies_"))
STUDIES = ROOT / "examples/studies"
MEMORY = 12 << 30  # of a process, so that the row that must not fit fits on no host


def run(*arguments):
    command = [str(STUDIES / "run.sh"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIME_LIMIT_S,
                          env={**os.environ, "TESSERA_BIN": str(BIN)},
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)))
    return Result(done.returncode, done.stdout.decode(errors="replace"), " ".join(command))


names = {path.parent.name for path in STUDIES.glob("*/cpu.txt")}
check.that(names == {"zero_stages", "offload", "fsdp", "pipeline", "tensor", "weak_scaling", "small_gpu"}, f"the studies: {names}")
TABLES = {"zero_stages": {"1", "2", "6", "7a"}, "offload": {"3", "4", "7d"}, "fsdp": {"7b"}, "pipeline": {"7c"},
          "tensor": {"1", "2"}, "weak_scaling": {"5a"}, "small_gpu": {"1", "4"}}
OUT_OF_MEMORY = {"offload": ["bloom-7b1-without-offload"]}
for name in sorted(names):
    out = folder / name
    shorter = ["--max_steps", "3", "--repeat", "2"] if name == "zero_stages" else ["--max_steps", "2"]
    result = run(name, "cpu", str(out), *shorter)
    check.that(result.code == 0, f"{name} ends well", result)
    rows = json.loads((out / "rows/compare.json").read_text())["rows"]
    lines = [line for line in (STUDIES / name / "cpu.txt").read_text().splitlines() if line[:1].isdigit()]
    check.that(len(lines) <= len(rows) <= len(lines) + 1, f"{name}: {len(rows)} rows of {len(lines)} lines")
    check.that(all(row["repeats"] == (2 if name == "zero_stages" else 1) or row["verdict"] == "out of memory" for row in rows),
               f"{name}: every row ran")
    verdicts = {row["row"]: row["verdict"] for row in rows}
    check.that(all(verdict in ("reference", "PASS", "out of memory") for verdict in verdicts.values()), f"{name}: {verdicts}", result)
    check.that("PASS" in verdicts.values() or name == "weak_scaling", f"{name}: {verdicts}")
    without_memory = [row for row, verdict in verdicts.items() if verdict == "out of memory"]
    check.that(without_memory == OUT_OF_MEMORY.get(name, []), f"{name}: out of memory are {without_memory}", result)
    tables = {path.stem.removeprefix("table_") for path in (out / "report").glob("table_*.csv")}
    report = (out / "report/report.md").read_text()
    check.that(TABLES[name] <= tables, f"{name}: tables {TABLES[name]}, not only {tables}", result)
    check.that(all(row in report for row in verdicts), f"{name}: the report has every row")

# --- columns that only some studies fill
def column(name, table, key):
    with (folder / name / f"report/table_{table}.csv").open() as file:
        return [row[key] for row in csv.DictReader(file)]


check.that(all(column("weak_scaling", "5a", "eval_loss")), "weak scaling evaluates")
check.that({float(degree) for degree in column("offload", "7d", "dp")} == {2, 4}, "offload on two data-parallel degrees")

# --- the largest batch is found where memory ends, and checkpointing makes it larger
result = run("fsdp", "cpu_largest_batch", str(folder / "largest"))
largest = [float(size) for size in column("largest", "7e", "per_device_train_batch_size")]
too_large = [float(size) for size in column("largest", "7e", "out_of_memory_batch_size")]
check.that(result.code == 0 and len(largest) == 2 and largest[0] < largest[1] and all(a < b for a, b in zip(largest, too_large, strict=True)),
           f"largest batches {largest}, out of memory at {too_large}", result)

# --- slices of the data are one run
events = [json.loads(line) for line in (folder / "small_gpu/train/metrics.jsonl").read_text().splitlines()]
steps = [event["step"] for event in events if event["event"] == "step"]
losses = [event["eval_loss"] for event in events if event["event"] == "eval"]
check.that(steps == list(range(1, 1 + 3 * 56 // 8)), f"three slices make one count of steps: {steps}")
check.that(len(losses) == 3 and losses[2] < losses[1] < losses[0], f"every slice goes on from the last one's weights: {losses}")

end = (folder / "small_gpu/train/metrics.jsonl").read_text()
result = run("small_gpu", "cpu", str(folder / "small_gpu"), "--max_steps", "2")
check.that(result.code == 0 and (folder / "small_gpu/train/metrics.jsonl").read_text() == end, "slices that are done are not trained on again", result)

# --- the same call again runs nothing again
written = (folder / "tensor/rows/ddp-2-tp2/metrics.jsonl").stat().st_mtime_ns
result = run("tensor", "cpu", str(folder / "tensor"), "--max_steps", "2")
check.that(result.code == 0 and "5 runs are taken over" in result.text and
           (folder / "tensor/rows/ddp-2-tp2/metrics.jsonl").stat().st_mtime_ns == written, "a study goes on", result)
for arguments in [(), ("zero_stage", "cpu"), ("tensor", "tpu")]:
    result = run(*arguments)
    check.that(result.code == 2 and "zero_stages cpu" in result.text, f"{arguments} is refused with the studies there are", result)

# --- rows for GPUs and nodes are possible rows: they are checked without a GPU, up to a file that is not there
for path in sorted(STUDIES.glob("*/*.txt")):
    if path.name.startswith("cpu"):
        continue
    missing = str(folder / "missing.jsonl")
    done = subprocess.run([str(BIN / "tessera-compare"), "--config", str(STUDIES / "gpu.json"), "--task", "causal", "--rows", str(path),
                           "--train_ids", missing, "--output_dir", str(folder / "none")], cwd=ROOT, capture_output=True, text=True, timeout=60)
    check.that(done.returncode == 4 and "missing.jsonl" in done.stderr, f"{path}: {done.stderr}")

shutil.rmtree(folder)
check.finish()
