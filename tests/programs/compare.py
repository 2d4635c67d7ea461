# SPDX-License-Identifier: MIT
"""tessera-compare: rows, verdicts and marks, repeats, going on after an interruption, the largest batch.

Usage: compare.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import csv
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

from support import BIN, DATA, MPIRUN, ROOT, TIME_LIMIT_S, Checker, launch

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_compare_"))
COMPARE = "tessera-compare"
base = ["--model_config", "bloom-tiny", "--tokenizer", str(DATA / "tokenizer"), "--max_seq_length", "96",
        "--learning_rate", "1e-3", "--train_file", str(DATA / "squad_sample.json")]
four = [*base, "--max_steps", "4", "--per_device_train_batch_size", "1", "--launcher", "threads"]


def rows_file(name, text):
    (folder / name).write_text(text)
    return str(folder / name)


def csv_cell(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return "'" + value  # no formula for spreadsheets
    return "" if value is None else str(value)


def rows_of(out):
    """compare.json's rows by name; comparison.csv must say the same."""
    comparison = json.loads((out / "compare.json").read_text())
    table = list(csv.DictReader((out / "comparison.csv").open()))
    check.that(comparison["schema"] == "tessera.compare/1", "compare.json says its schema")
    for row, cells in zip(comparison["rows"], table, strict=True):
        for key, cell in cells.items():
            check.that(cell == csv_cell(row[key]) or float(cell) == row[key],
                       f"{row['row']}: {key} is {cell} in comparison.csv, {row[key]} in compare.json")
    return {row["row"]: row for row in comparison["rows"]}


# --- its help has the flags of the program that it starts
result = launch(COMPARE, ["--help"])
lines = result.text.splitlines()
check.that(result.code == 0 and len(lines) == 23 and max(map(len, lines)) <= 80 and "..." not in "".join(lines[1:]), "one screen of help", result)
result = launch(COMPARE, ["--help", "all"])
check.that(all(f"\n  --{flag} " in result.text for flag in ("strategies", "rank_counts", "model", "learning_rate")) and "\n  --ranks " not in result.text and
           max(map(len, result.text.splitlines())) <= 100, "all flags but those that it chooses", result)
result = launch(COMPARE, ["--help", "--learning_rate"])
check.that("peak learning rate" in result.text and "TrainingArguments" in result.text, "one flag", result)

# --- strategies on several ranks pass beside one rank, whatever the launcher
for launcher in ["threads", "mpirun"] if MPIRUN else ["threads"]:
    out = folder / launcher
    result = launch(COMPARE, [*four[:-2], "--rank_counts", "2", "--strategies", "ddp,zero3", "--launcher", launcher,
                              "--output_dir", str(out)])
    rows = rows_of(out)
    check.that(result.code == 0, f"the comparison passes with {launcher}", result)
    check.that([row["verdict"] for row in rows.values()] == ["reference", "PASS", "PASS"], f"verdicts with {launcher}", result)
    page = (out / "report.html").read_text()
    check.that("<dt>Equal numbers</dt><dd>yes: all 2 agree with single-1" in page and f"report: {out}/report.html" in result.text, "the report is written", result)
    check.that(rows["zero3-2"]["optimizer_bytes"] * 1.9 < rows["single-1"]["optimizer_bytes"], "two ranks share the state")

# --- ranks that share rows, in all three ways
out = folder / "context"
result = launch(COMPARE, [*four, "--output_dir", str(out), "--rows", rows_file("context.txt", """
2 --strategy zero1 --context_parallel 2 --context_attention heads
2 --strategy fsdp --context_parallel 2 --context_attention keys
4 --strategy zero3 --context_parallel 2
""")])
rows = rows_of(out)
check.that([row["verdict"] for row in rows.values()] == ["reference", "PASS", "PASS", "PASS"] and
           [row["cp"] for row in rows.values()] == [1, 2, 2, 2] and "1x2x1 context 2" in result.text, "rows on a context axis are those of one rank", result)

# --- plots and tables as files of their own
files = folder / "files"
result = launch("tessera-report", [str(folder / "threads"), "--output_dir", str(files)])
plots, tables = sorted(files.glob("plot_*.svg")), sorted(files.glob("table_*.tex"))
check.that(result.code == 0 and {"plot_loss.svg", "plot_rate.svg", "plot_memory.svg"} <= {p.name for p in plots} and
           [t.stem for t in tables] == sorted(t.stem for t in files.glob("table_*.csv")), "plots are SVG files, tables LaTeX", result)
for plot in plots:
    drawing = xml.etree.ElementTree.parse(plot).getroot()
    shapes = [e for e in drawing.iter() if e.tag.endswith(("}path", "}rect", "}circle"))]
    check.that(drawing.tag == "{http://www.w3.org/2000/svg}svg" and len(shapes) > 5 and "var(" not in plot.read_text(), f"{plot.name} is a drawing of its own")
if pdflatex := shutil.which("pdflatex"):
    (files / "all.tex").write_text("\\documentclass{article}\\usepackage{booktabs}\\usepackage{graphicx}\\usepackage[T1]{fontenc}\\begin{document}\n" +
                                   "".join(f"\\input{{{t.stem}}}\n" for t in tables) + "\\end{document}\n")
    done = subprocess.run([pdflatex, "-interaction=nonstopmode", "-halt-on-error", "all.tex"], cwd=files, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    check.that(done.returncode == 0, f"LaTeX takes the tables: {done.stdout[-1500:]}")

if MPIRUN:  # srun as a script of a batch job sees it
    (folder / "srun").write_text("#!/bin/sh\nshift 2\nranks=${1#--ntasks=}\nshift\n"
                                 'echo "ranks: $ranks"\n'
                                 f'exec {MPIRUN} {"--allow-run-as-root" if os.geteuid() == 0 else ""} --oversubscribe -n $ranks "$@"\n')
    (folder / "srun").chmod(0o755)
    out = folder / "slurm"
    result = launch(COMPARE, [*four[:-2], "--rank_counts", "2", "--strategies", "zero2", "--launcher", "srun", "--output_dir", str(out)],
                    environment={"PATH": f"{folder}:{os.environ['PATH']}"})
    check.that(result.code == 0 and [row["verdict"] for row in rows_of(out).values()] == ["reference", "PASS"] and
               "ranks: 2" in (out / "logs/zero2-2.log").read_text(), "rows are steps of srun", result)

# --- ranks of torchrun: a played one gives ranks what the real one gives them (tests/launch runs that), and ends as it does
(folder / "torchrun").write_text(f"""#!{sys.executable}
import os, socket, subprocess, sys
options, command = sys.argv[1:4], sys.argv[4:]
assert options[:2] == ["--standalone", "--no-python"], options
ranks = int(options[2].removeprefix("--nproc-per-node="))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    given = {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
             "TORCHELASTIC_RUN_ID": "played", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "False"}}
print("ranks:", ranks, flush=True)
jobs = [subprocess.Popen(command, env={{**os.environ, **given, "RANK": str(r), "LOCAL_RANK": str(r)}}) for r in range(ranks)]
codes = [job.wait() for job in jobs]
if any(codes):
    print("=" * 60, "Root Cause (first observed failure):", f"  exitcode  : {{next(c for c in codes if c)}} (pid: 1)", "=" * 60, sep="\\n")
sys.exit(any(codes))
""")
(folder / "torchrun").chmod(0o755)
with_torchrun = {"PATH": f"{folder}:{os.environ['PATH']}"}
out = folder / "torchrun_rows"
ranks_of_torchrun = [*four[:-2], "--rank_counts", "2", "--strategies", "zero2", "--launcher", "torchrun", "--backend", "tcp", "--reference", "false"]
result = launch(COMPARE, [*ranks_of_torchrun, "--output_dir", str(out)], environment=with_torchrun)
start = json.loads((out / "zero2-2/metrics.jsonl").read_text().splitlines()[0]) if result.code == 0 else {}
check.that(result.code == 0 and (start.get("launcher"), start.get("world_size")) == ("torchrun", 2), "rows are jobs of torchrun", result)
result = launch(COMPARE, [*ranks_of_torchrun, "--backend", "mpi", "--output_dir", str(folder / "torchrun_fails")], environment=with_torchrun)
row = rows_of(folder / "torchrun_fails")["zero2-2"]
check.that(result.code == row["exit_code"] == 2 and "mpi" in row["message"], f"a row's exit code is its rank's, not torchrun's 1: {row['message']}", result)
nowhere = {"PATH": str(folder / "nowhere")}
for launcher, place in [("torchrun", "it comes with Python's torch"), ("mpirun", "mpirun was not found"), ("srun", "batch script of Slurm")]:
    result = launch(COMPARE, [*four[:-1], launcher, "--output_dir", str(folder / "nothing")], environment=nowhere)
    check.that(result.code == 2 and f"--launcher {launcher}: " in result.text and place in result.text and not (folder / "nothing").exists(),
               f"{launcher} is missing", result)

# --- layouts: bytes beside formulas
listed = rows_file("layouts.txt", "# ranks, flags\n2 --strategy ddp --pipeline_parallel 2 --pipeline_schedule gpipe\n\n"
                   "4 --strategy fsdp --tensor_parallel 2 --sequence_parallel  # both axes\n")
out = folder / "layouts"
result = launch(COMPARE, [*four, "--rows", listed, "--global_batch_size", "4", "--output_dir", str(out)])
rows = rows_of(out)
check.that(result.code == 0 and list(rows) == ["single-1", "ddp-2-pp2-gpipe", "fsdp-4-tp2-sp"] and
           [row["verdict"] for row in rows.values()] == ["reference", "PASS", "PASS"], "a list of layouts passes", result)
for name, row in rows.items():
    for what in ("parameter", "gradient", "optimizer", "comm"):
        unit = "_bytes_per_step" if what == "comm" else "_bytes"
        measured, formula = row[what + unit], row[f"{what}_formula{unit}"]
        check.that(abs(measured - formula) <= 0.1 * formula + 8192, f"{name}: {what} {measured} beside {formula}")

# --- other work is marked, never failed; rows of one work are held against each other
mixed = rows_file("mixed.txt", f"""1 --strategy single
2 --strategy zero2 --dtype bf16
1 --strategy single --dtype bf16
2 --strategy zero2 --per_device_train_batch_size 2
2 --strategy zero2 --gradient_accumulation_steps 3 --name twelve
2 --strategy zero1 --max_seq_length 64
2 --strategy zero1 --model_config gpt2-tiny
2 --strategy zero1 --train_slice 0:100
2 --deepspeed {ROOT}/tests/programs/deepspeed/valid/03-total-and-micro.json
""")
out = folder / "mixed"
arguments = [*four, "--rows", mixed, "--repeat", "2", "--baseline", "twelve", "--output_dir", str(out)]
result = launch(COMPARE, arguments)
rows = rows_of(out)
check.that(result.code == 0, "rows of other work do not fail", result)
for name, verdict, reference, mark in [
    ("single-1", "reference", "single-1", "global_batch_size 4, not 6"),
    ("zero2-2-bf16", "reference", "zero2-2-bf16", "dtype bf16, not fp32; global_batch_size 4, not 6"),
    ("single-1-bf16", "PASS", "zero2-2-bf16", "dtype bf16, not fp32; global_batch_size 4, not 6"),
    ("zero2-2-bs2", "PASS", "single-1", "global_batch_size 4, not 6"),
    ("twelve", "reference", "twelve", None),
    ("zero1-2-sl64", "reference", "zero1-2-sl64", "global_batch_size 4, not 6; max_seq_length 64, not 96"),
    ("zero1-2-gpt2-tiny", "reference", "zero1-2-gpt2-tiny",
     "global_batch_size 4, not 6; model_config gpt2-tiny, not bloom-tiny"),
    ("zero1-2-rows0_100", "reference", "zero1-2-rows0_100", "global_batch_size 4, not 6; train_slice 0:100, not none"),
]:
    row = rows.get(name, {})
    check.that((row.get("verdict"), row.get("reference"), row.get("mark")) == (verdict, reference, mark),
               f"{name}: {row.get('verdict')}, {row.get('reference')}, {row.get('mark')}")
    check.that(mark is None or f"[{mark}]" in result.text, f"{name}: the mark is printed", result)
deepspeed = rows["ddp-2-03-total-and-micro"]
check.that((deepspeed["per_device_train_batch_size"], deepspeed["gradient_accumulation_steps"]) == (1, 4) and
           deepspeed["mark"] == "global_batch_size 8, not 6", f"a DeepSpeed file chooses its batches: {deepspeed}")
check.that(rows["zero1-2-rows0_100"]["num_train_samples"] < rows["single-1"]["num_train_samples"] and
           rows["zero1-2-gpt2-tiny"]["model"] == "gpt2-tiny", "data and model are columns")

# --- medians, deviations and minima over the repeats; savings and changes beside the baseline
ends = {}
for name, row in rows.items():
    check.that(row["runs"] == [name, name + ".2"], f"{name} ran twice: {row['runs']}")
    ends[name] = [json.loads((out / run / "metrics.jsonl").read_text().splitlines()[-1]) for run in row["runs"]]
    speeds = [end["tokens_per_second_median"] for end in ends[name]]
    for key, expected in [("tokens_per_second_median", statistics.median(speeds)),
                          ("tokens_per_second_repeat_std", statistics.stdev(speeds)),
                          ("tokens_per_second_repeat_min", min(speeds))]:
        check.that(abs(row[key] - expected) <= 1e-9 * expected, f"{name}: {key} {row[key]}, not {expected}")
for name, row in rows.items():
    ours, theirs = ({key: statistics.median(end[key] for end in ends[row]) for key in
                     ("train_runtime", "cpu_rss_tree_peak_bytes", "tokens_per_second_median")} for row in (name, "twelve"))
    for key, expected in [
        ("memory_savings_ratio", 1 - ours["cpu_rss_tree_peak_bytes"] / theirs["cpu_rss_tree_peak_bytes"]),
        ("runtime_change_ratio", ours["train_runtime"] / theirs["train_runtime"] - 1),
        ("scaling_ratio", ours["tokens_per_second_median"] / row["world_size"] / (theirs["tokens_per_second_median"] / 2)),
    ]:
        check.that(abs(row[key] - expected) <= 1e-9, f"{name}: {key} {row[key]}, not {expected}")

# --- what is done is not done again; what another command made, or what was cut off, is
written = {run: (out / run / "metrics.jsonl").stat().st_mtime_ns for row in rows.values() for run in row["runs"]}
journal = (out / "done.jsonl").read_text().splitlines(keepends=True)
(out / "done.jsonl").write_text("".join(journal[:-2]) + journal[-2][:40])
arguments[arguments.index("--rows") + 1] = rows_file("mixed2.txt", (folder / "mixed.txt").read_text().replace("_steps 3", "_steps 2"))
result = launch(COMPARE, arguments)
again = {run for run, time in written.items() if (out / run / "metrics.jsonl").stat().st_mtime_ns != time}
check.that(result.code == 0 and again == {"twelve", "twelve.2", *rows_of(out)["ddp-2-03-total-and-micro"]["runs"][1:],
                                          "zero1-2-rows0_100.2"},
           f"only what changed or was not finished runs again: {again}", result)
result = launch(COMPARE, arguments)
check.that(result.code == 0 and "18 runs are taken over" in result.text, "and then nothing does", result)
result = launch(COMPARE, [*four, "--output_dir", str(out), "--overwrite_output_dir", "--strategies", "ddp", "--rank_counts", "2"])
check.that(result.code == 0 and not (out / "twelve").exists(), "--overwrite_output_dir begins anew", result)

own = folder / "own"
own.mkdir()
(own / "thesis.tex").write_text("x")
result = launch(COMPARE, [*four, "--output_dir", str(own), "--overwrite_output_dir", "--strategies", "ddp", "--rank_counts", "2"])
check.that(result.code == 2 and (own / "thesis.tex").exists() and "holds no comparison to overwrite" in result.text, "other files are not overwritten", result)

# --- nor what other inputs made, or whose folder is gone: every file and folder that a flag names counts
tokenizer, out = folder / "tokenizer", folder / "inputs"
shutil.copytree(DATA / "tokenizer", tokenizer)
result = launch("tessera-finetune-squad", [*base, "--train_slice", "0:4", "--max_steps", "1", "--report_to", "none", "--output_dir", str(folder / "base")])
check.that(result.code == 0, "a model to compare", result)
model, deepspeed = folder / "base/final", folder / "ds.json"
deepspeed.write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}')
validation, settings = folder / "validation.json", folder / "settings.json"
shutil.copy(DATA / "squad_sample.json", validation)
settings.write_text('{"weight_decay": 0.01}')
arguments = ["--model", str(model), "--tokenizer", str(tokenizer), "--max_seq_length", "96", "--train_file", str(DATA / "squad_sample.json"),
             "--train_slice", "0:8", "--validation_file", str(validation), "--validation_slice", "0:2", "--deepspeed", str(deepspeed),
             "--config", str(settings), "--reference", "false", "--rank_counts", "1", "--max_steps", "1", "--learning_rate", "1e-3", "--launcher", "threads",
             "--cache_dir", str(folder / "cache"), "--output_dir", str(out)]


def flip_weights():
    content = bytearray((model / "model.safetensors").read_bytes())
    content[-1] ^= 0x80
    (model / "model.safetensors").write_bytes(content)


def taken_over(what, expected):
    result = launch(COMPARE, arguments)
    found = "1 runs are taken over" in result.text
    check.that(result.code == 0 and found == expected, f"{what}: {'taken over' if expected else 'run again'}", result)


taken_over("a first call", False)
taken_over("the same call", True)
for what, change in [("--deepspeed", lambda: deepspeed.write_text(deepspeed.read_text().replace('gpu": 1', 'gpu": 2'))),
                     ("--model", flip_weights),
                     ("--tokenizer", lambda: (tokenizer / "tokenizer.json").write_text((tokenizer / "tokenizer.json").read_text() + " ")),
                     ("--validation_file", lambda: validation.write_text(validation.read_text() + " ")),
                     ("--config", lambda: settings.write_text('{"weight_decay": 0.02}')),
                     ("its folder", lambda: shutil.rmtree(next(path for path in out.iterdir() if (path / "metrics.jsonl").exists())))]:
    change()
    taken_over(f"{what} has changed", False)
taken_over("nothing has changed", True)

# --- a comparison that is killed leaves its rows in the files, and goes on
out = folder / "killed"
arguments = [*four, "--rows", rows_file("killed.txt", "1 --strategy single --max_steps 2 --name quick\n"
                                                            "1 --strategy single --name slow\n"), "--output_dir", str(out)]
arguments[arguments.index("--max_steps") + 1] = "150"
running = subprocess.Popen([str(BIN / COMPARE), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
log = out / "slow/metrics.jsonl"
deadline = time.monotonic() + TIME_LIMIT_S
while not (log.exists() and '"step"' in log.read_text()) and time.monotonic() < deadline and running.poll() is None:
    time.sleep(0.01)
running.kill()
running.wait()
check.that([row["verdict"] for row in rows_of(out).values()] == ["reference", "not run"], "a killed comparison has the rows that are done")
result = launch(COMPARE, arguments)
check.that(result.code == 0 and "quick: taken over" in result.text and "1 runs are taken over" in result.text and
           [row["verdict"] for row in rows_of(out).values()] == ["reference", "reference"], "and goes on with the others", result)

# --- weak scaling keeps the rows of a rank
out = folder / "weak"
result = launch(COMPARE, [*four, "--scaling", "weak", "--gradient_accumulation_steps", "2", "--strategies", "ddp",
                          "--rank_counts", "2,4", "--output_dir", str(out)])
check.that(result.code == 0 and [row["global_batch_size"] for row in rows_of(out).values()] == [2, 4, 8],
           "weak scaling grows the global batch", result)

# --- the same work with other numbers fails
out = folder / "defect"
result = launch(COMPARE, [*four, "--rank_counts", "2", "--strategies", "ddp,zero3", "--output_dir", str(out)],
                environment={"TESSERA_COMPARE_DEFECT": "zero3-2"})
check.that(result.code == 6, "a planted defect fails the comparison", result)
check.that([row["verdict"] for row in rows_of(out).values()] == ["reference", "PASS", "FAIL"], "only the planted row fails",
           result)

# --- out of memory is a row
large = rows_file("large.txt", "1 --strategy single --model_config bloom-560m --name large\n1 --strategy single --name small\n")
out = folder / "large"
result = launch(COMPARE, [*four, "--rows", large, "--output_dir", str(out)], memory_bytes=3 << 30)
rows = rows_of(out)
check.that(result.code == 0 and [row["verdict"] for row in rows.values()] == ["out of memory", "reference"] and
           "out of memory" in rows["large"]["message"], "a row out of memory is a result", result)

# --- the largest batch, among the divisors of a global batch
out = folder / "batch"
arguments = [*base, "--launcher", "threads", "--max_steps", "1", "--largest_batch", "1024", "--global_batch_size", "1024",
             "--rows", rows_file("one.txt", "1 --strategy single\n"), "--output_dir", str(out)]
result = launch(COMPARE, arguments, memory_bytes=1000 << 20)
row = rows_of(out)["single-1"]
largest = row["largest_batch_size"]
check.that(result.code == 0 and largest >= 2 and row["out_of_memory_batch_size"] == 2 * largest and
           row["per_device_train_batch_size"] == largest and row["gradient_accumulation_steps"] * largest == 1024,
           f"the largest batch that fits is found and used: {row['largest_batch_size']}", result)
check.that([path.name for path in out.iterdir() if path.is_dir() and path.name != "logs"] == ["single-1"],
           "tries leave no runs behind")

# --- a batch that fits the first steps but not the run gives way to a smaller one
with (folder / "ragged.jsonl").open("w") as file:
    for row in range(3 * 32):
        file.write(json.dumps({"input_ids": [5 + row % 7] * (8 if row < 64 else 384)}) + "\n")
out = folder / "ragged"
result = launch(COMPARE, ["--task", "causal", "--model_config", "bloom-tiny", "--train_ids", str(folder / "ragged.jsonl"), "--shuffle", "false",
                          "--max_seq_length", "384", "--launcher", "threads", "--max_steps", "3", "--largest_batch", "32", "--global_batch_size", "32",
                          "--rows", rows_file("one.txt", "1 --strategy single\n"), "--output_dir", str(out)], memory_bytes=760 << 20)
row = rows_of(out)["single-1"]
check.that(result.code == 0 and row["verdict"] == "reference" and 1 <= row["largest_batch_size"] < 32 and
           row["out_of_memory_batch_size"] == 2 * row["largest_batch_size"] and
           row["gradient_accumulation_steps"] * row["largest_batch_size"] == 32 and
           f"{row['largest_batch_size']} ({row['out_of_memory_batch_size']} does not fit)" in result.text, f"the largest batch is one that the run fits: {row}", result)

# --- peers: a row says which Python package is missing; tests/readers runs those that are there
missing = folder / "packages"
(missing / "transformers").mkdir(parents=True)
(missing / "torch").mkdir()
(missing / "torch/__init__.py").write_text("")
(missing / "transformers/__init__.py").write_text("raise ImportError('not for this test')\n")
out = folder / "peers"
result = launch(COMPARE, [*four, "--strategies", "ddp", "--peer", "torch,torch-compile", "--rank_counts", "1", "--python", sys.executable,
                          "--output_dir", str(out)], environment={"PYTHONPATH": str(missing)})
rows = rows_of(out)
check.that(result.code == 0 and list(rows) == ["single-1", "ddp-1", "torch-single-1", "torch-compile-single-1"], f"a peer is a row: {list(rows)}", result)
peer = rows["torch-single-1"]
check.that(peer["peer"] == "torch" and peer["verdict"] == "not available" and "transformers" in peer["message"] and
           "not for this test" in peer["message"], f"a missing package is a row: {peer}", result)
steps = [json.loads(line) for line in (out / "logs/torch-single-1.rows.jsonl").read_text().splitlines()]
start = json.loads((out / "single-1/metrics.jsonl").read_text().splitlines()[0])
check.that(len(steps) == 4 and start["num_train_steps"] == 4 and all(len(row["labels"]) == len(row["input_ids"]) for row in steps),
           "a peer gets the rows of all steps")
compiled = [json.loads((out / f"logs/{name}-single-1.json").read_text())["compile"] for name in ("torch", "torch-compile")]
check.that(compiled == [False, True], f"a compiled peer is told to compile: {compiled}")
# A launcher that has the last word, as torchrun has.
(missing / "transformers/__init__.py").write_text("")
(missing / "torch/__init__.py").write_text("class OutOfMemoryError(Exception): pass\n")
(missing / "torch/distributed").mkdir()
(missing / "torch/distributed/__init__.py").write_text("")
(missing / "torch/distributed/run.py").write_text(
    "import subprocess, sys\ncode = subprocess.call([sys.executable, *sys.argv[3:]])\nprint('=' * 40)\nsys.exit(code)\n")
out = folder / "broken-peer"
result = launch(COMPARE, [*four, "--rows", rows_file("peer.txt", "2 --peer torch --strategy ddp\n"), "--reference", "false",
                          "--python", sys.executable, "--output_dir", str(out)], environment={"PYTHONPATH": str(missing)})
check.that(result.code == 1 and rows_of(out)["torch-ddp-2"]["message"] == "error: AttributeError: module 'torch' has no attribute 'cuda'",
           f"why a peer failed is its own error: {rows_of(out)['torch-ddp-2']['message']}", result)
# DeepSpeed listens, though the row has one process: two comparisons may be on one host. This package says where and ends.
(missing / "deepspeed").mkdir()
(missing / "deepspeed/__init__.py").write_text("""import os, socket, types, torch
torch.cuda = types.SimpleNamespace(is_available=lambda: False)
def init_distributed(backend):
    server = socket.socket()
    server.bind((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))
    raise RuntimeError(f'listened at {server.getsockname()[1]}')
""")
said = []
with socket.socket() as another:
    for i in range(2):
        out = folder / f"port-{i}"
        result = launch(COMPARE, [*four, "--rows", rows_file("peer.txt", "1 --peer deepspeed --strategy zero1\n"), "--reference", "false",
                                  "--python", sys.executable, "--output_dir", str(out)], environment={"PYTHONPATH": str(missing)})
        said.append(rows_of(out)["deepspeed-zero1-1"]["message"])
        port = re.fullmatch("error: RuntimeError: listened at ([0-9]+)", said[i])
        check.that(port, f"DeepSpeed finds a port where another comparison has one: {said}", result)
        if i == 0 and port:
            another.bind(("127.0.0.1", int(port[1])))
out = folder / "no-python"
result = launch(COMPARE, [*four, "--rows", rows_file("peer.txt", "1 --peer hf\n"), "--python", "no-such-python", "--output_dir", str(out)])
check.that(result.code == 0 and rows_of(out)["hf-single-1"]["message"] == "no-such-python was not found", "no Python, no failure", result)

# --- where nothing ended the same call goes on as well
result = launch(COMPARE, [*four, "--rows", rows_file("peer.txt", "1 --peer hf\n"), "--reference", "false", "--python", "no-such-python",
                          "--output_dir", str(folder / "nothing")])
again = launch(COMPARE, [*four, "--rows", rows_file("peer.txt", "1 --peer hf\n"), "--reference", "false", "--python", "no-such-python",
                         "--output_dir", str(folder / "nothing")])
check.that(result.code == 0 and again.code == 0, "a comparison without a row that ended goes on", again)

# --- the mistakes of a row are named with its line, and nothing is run
for text, pieces in [
    ("2 --strategy ddp --pipeline_paralel 2", ["bad.txt:1", "--pipeline_parallel"]),
    ("0 --strategy ddp", ["bad.txt:1", "'0'"]),
    ("two --strategy ddp", ["bad.txt:1", "'two'"]),
    ("2 --strategy ddp --output_dir x", ["bad.txt:1", "--output_dir"]),
    ("2 --strategy ddp --name a/b", ["bad.txt:1", "--name a/b"]),
    ("2 --strategy ddp\n2 --strategy ddp", ["two rows are called ddp-2", "--name"]),
    ("2 --deepspeed missing.json", ["bad.txt:1", "missing.json"]),
    ("1 --peer hg", ["bad.txt:1", "--peer hg", "hf, hf-compile, peft, peft-compile, torch, torch-compile, deepspeed", "nearest is hf"]),
    ("1 --peer hf --lora_r 4", ["bad.txt:1", "--peer hf", "--peer peft trains adapters"]),
    ("1 --peer peft", ["bad.txt:1", "--peer peft", "--lora_r"]),
    ("2 --peer hf --strategy zero3", ["bad.txt:1", "--peer hf", "zero3", "single, ddp"]),
    ("2 --peer torch --strategy fsdp --offload optimizer", ["bad.txt:1", "--peer torch", "--offload optimizer"]),
    ("# nothing", ["has no row"]),
    ("3 --strategy ddp --tensor_parallel 2", ["bad.txt:1", "3 ranks are no multiple of 2"]),
]:
    out = folder / "bad"
    result = launch(COMPARE, [*four, "--rows", rows_file("bad.txt", text + "\n"), "--output_dir", str(out)])
    check.that(result.code == 2 and result.text.count("error:") == 1 and all(piece in result.text for piece in pieces),
               f"{text!r} is refused with {pieces}", result)
    check.that(not out.exists(), f"{text!r}: nothing is written")

shutil.rmtree(folder)
check.finish()
