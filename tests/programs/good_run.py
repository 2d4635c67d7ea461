# SPDX-License-Identifier: MIT
"""Good runs: the files, events and tables that the programs promise.

Usage: good_run.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import csv
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from start_ranks import free_port  # noqa: E402
from support import DATA, MPIRUN, Checker, launch, read_events

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_good_run_"))
SQUAD, CLASSIFICATION = "tessera-finetune-squad", "tessera-finetune-classification"
common = ["--model_config", "bloom-tiny", "--tokenizer", str(DATA / "tokenizer"), "--max_seq_length", "96",
          "--learning_rate", "1e-3"]
squad = [*common, "--train_file", str(DATA / "squad_sample.json"), "--max_steps", "6", "--logging_steps", "1"]


def steps_of(events, key):
    return [event[key] for event in events if event["event"] == "step"]


def check_phases(name, events, ranks):
    for event in events:
        if event["event"] != "step":
            continue
        phases = [event[key] for key in ("data_time_s", "forward_s", "backward_s", "comm_exposed_s", "optimizer_s")]
        check.that(all(phase >= 0 for phase in phases) and sum(phases) <= 1.001 * event["step_time_s"] + 1e-4,
                   f"{name}: the phases {phases} are parts of {event['step_time_s']}")
        check.that(event["forward_s"] > 0 and event["backward_s"] > 0 and event["optimizer_s"] > 0, f"{name}: {phases}")
        check.that(event["h2d_d2h_s"] is None, f"{name}: nothing goes to a GPU")
        if ranks > 1:
            check.that(event["comm_exposed_s"] > 0 and event["slowest_rank"] in range(ranks),
                       f"{name}: ranks wait, and one is the slowest: {event['slowest_rank']}")
        else:
            check.that(event["slowest_rank"] is None, f"{name}: one rank is not the slowest")


# --- SQuAD: one rank, with everything a run leaves behind
out = folder / "squad"
result = launch(SQUAD, [*squad, "--output_dir", str(out), "--per_device_train_batch_size", "4",
                        "--validation_file", str(DATA / "squad_sample.json"), "--eval_steps", "3"])
check.that(result.code == 0, "a SQuAD run ends well", result)
check.that("\r" not in result.text and "\033" not in result.text, "no progress bar and no colour in a pipe", result)
check.that("unknown size" not in result.text and "-0.0" not in result.text, "no warnings of LibTorch's counter, no minus before nothing", result)
check.that(sum(line.startswith("step ") for line in result.text.splitlines()) == 6, "one line a step", result)
events = read_events(check, out)
names = [event["event"] for event in events if event["event"] != "resource"]
check.that(names == ["run_start", "data", "data", "step", "step", "step", "eval", "step", "step", "step", "eval", "run_end"],
           f"events in order: {names}")
check.that(any(event["event"] == "resource" for event in events), "resources are sampled")
start, end = events[0], events[-1]
check.that(start["config"]["learning_rate"] == {"value": 0.001, "origin": "command line"}, "config with origins")
check.that(json.loads((out / "config.json").read_text()) == start["config"], "config.json is the resolved configuration")
check.that(steps_of(events, "samples") == [4] * 6, "samples count real rows")
check_phases("one rank", events, 1)
last_train = max(event["elapsed_s"] for event in events if event["event"] in ("step", "eval"))
exported = min(path.stat().st_mtime for path in (out / "final").iterdir()) - (end["time_unix_s"] - end["elapsed_s"])
check.that(last_train - start["elapsed_s"] <= end["train_runtime"] <= exported + 0.02,  # file times are of the last tick
           f"the runtime {end['train_runtime']} ends with training at {last_train}, not with the export, begun at {exported}")
check.that(end["exit_code"] == 0 and end["train_steps"] == 6 and end["train_samples"] == 24, "the summary counts steps")
check.that(end["train_loss_final"] == steps_of(events, "loss")[-1], "the last loss is the last step's")
check.that(end["parameter_bytes"] >= 4 * start["num_parameters"], "parameter bytes are measured")
for name in ("parameter", "gradient", "optimizer", "buffer"):
    check.that(end[f"plan_{name}_bytes"] == end[f"measured_{name}_bytes"], f"{name}s are held as planned")
check.that(abs(end["measured_allocated_bytes"] / end["plan_allocated_bytes"] - 1) < 0.03, "the peak is the plan's")
check.that("plan     measured   difference" in result.text, "plan and measurement are printed", result)
check.that(len(end["param_hash_final"]) == 32, "the parameters are hashed")
rows = list(csv.DictReader((out / "results.csv").open()))
check.that(len(rows) == 1 and rows[0]["run_id"] == start["run_id"], "one row in results.csv")
check.that(len((out / "resources.csv").read_text().splitlines()) >= 3, "resources.csv has samples")
final = {path.name for path in (out / "final").iterdir()}
check.that({"config.json", "model.safetensors", "tokenizer.json"} <= final, f"final/ is a model directory: {final}")

# --- what a user may not know is said: threads that take turns, a flag given twice, a model in the cache of the Hub
result = launch(SQUAD, [*squad, "--dry_run", "--ranks", "8", "--max_steps", "4", "--max_steps", "5", "--output_dir", str(folder / "none")],
                environment={"OMP_NUM_THREADS": str(os.cpu_count())})
check.that(result.code == 0 and "8 rank(s) of" in result.text and "OMP_NUM_THREADS=" in result.text, "more threads than cores", result)
check.that("--max_steps is given twice; the last one, 5, wins over 4" in result.text and ", 5 steps" in result.text, "the last one wins", result)
hub = folder / "hub" / "models--org--name"
(hub / "refs").mkdir(parents=True)
(hub / "refs" / "main").write_text("0123abc")
shutil.copytree(out / "final", hub / "snapshots" / "0123abc")
result = launch(SQUAD, ["--model", "org/name", "--train_file", str(DATA / "squad_sample.json"), "--dry_run"],
                environment={"HF_HUB_CACHE": str(hub.parent)})
check.that(result.code == 0 and f"--model org/name is {hub}/snapshots/0123abc" in result.text, "a name of the Hub in its cache", result)

# --- final/ keeps what the source directory had of tokenizer and generation
kept = {"generation_config.json": '{"temperature": 0.5}', "chat_template.jinja": "{{ messages }}", "tokenizer.model": "\0\1", "merges.txt": "a b",
        "added_tokens.json": "{}", "special_tokens_map.json": '{"eos_token": "</s>"}'}
for name, content in {**kept, "notes.txt": "x", "optimizer.pt": "x"}.items():
    (out / "final" / name).write_text(content)
source = out / "final"

# --- final/ can be trained on, and the same numbers come from several ranks, whatever the transport
reference = folder / "reference"
base = [*squad, "--model", str(out / "final")]
for flag in ("--model_config", "--tokenizer"):
    position = base.index(flag)
    base = base[:position] + base[position + 2:]
launch(SQUAD, [*base, "--output_dir", str(reference), "--per_device_train_batch_size", "4"])
expected = read_events(check, reference)
check.that(steps_of(expected, "loss")[0] < steps_of(events, "loss")[0], "training goes on from final/")
left = {path.name: path.read_bytes() for path in (reference / "final").iterdir()}
check.that(all(left.get(name) == content.encode() for name, content in kept.items()) and
           all(left[name] == (source / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")),
           f"final/ keeps tokenizer and generation files: {sorted(left)}")
check.that("notes.txt" not in left and "optimizer.pt" not in left, "and nothing else")
for name, extra, ranks, mpi, mesh, suffix in [
    ("threads", ["--strategy", "zero3"], 2, False, (1, 2, 1), ""),
    ("mpi", ["--strategy", "zero3"], 2, True, (1, 2, 1), ""),
    ("fsdp", ["--strategy", "fsdp", "--shard_ranks", "2", "--gradient_checkpointing"], 4, False, (1, 4, 1), "_hs2_gc"),
    ("pipeline", ["--strategy", "zero1", "--pipeline_parallel", "2"], 2, False, (2, 1, 1), "_pp2_1f1b"),
    ("split backward", ["--strategy", "zero2", "--pipeline_parallel", "2", "--pipeline_schedule", "zbh1"], 4, False, (2, 2, 1), "_pp2_zbh1"),
    ("shared vocabulary", ["--strategy", "zero3", "--pipeline_parallel", "2", "--pipeline_vocabulary", "shared"], 4, False, (2, 2, 1), "_pp2_1f1b_shared"),
    ("packed", ["--strategy", "zero2", "--packing", "--save_norm_outputs"], 2, False, (1, 2, 1), "_act_pack"),
    ("packed stages", ["--strategy", "zero1", "--pipeline_parallel", "2", "--packing"], 4, False, (2, 2, 1), "_pp2_1f1b_pack"),
    ("without padding", ["--strategy", "zero2", "--padding_free", "true"], 2, False, (1, 2, 1), "_pf"),
    ("without padding on the left", ["--strategy", "fsdp", "--padding_free", "true", "--padding_side", "left"], 2, False, (1, 2, 1), "_pf"),
    ("cut rows", ["--strategy", "zero2", "--context_parallel", "2"], 4, False, (1, 2, 1), "_cp2"),
    ("cut packed rows", ["--strategy", "fsdp", "--context_parallel", "2", "--context_attention", "keys", "--packing"], 2, False, (1, 1, 1), "_cp2_ca-keys_pack"),
    ("two axes", ["--strategy", "ddp", "--pipeline_parallel", "2", "--tensor_parallel", "2"], 4, True, (2, 1, 2), "_tp2_pp2_1f1b"),
    ("three axes", ["--strategy", "zero2", "--pipeline_parallel", "2", "--tensor_parallel", "2", "--offload", "optimizer"],
     8, False, (2, 2, 2), "_tp2_pp2_1f1b_off_pin"),
]:
    if mpi and not MPIRUN:
        continue
    out = folder / name
    launcher = [] if mpi else ["--ranks", str(ranks)]
    result = launch(SQUAD, [*base, "--output_dir", str(out), "--per_device_train_batch_size", "1",
                            "--gradient_accumulation_steps", str(4 // mesh[1]), *extra, *launcher],
                    mpi_ranks=ranks if mpi else 0)
    check.that(result.code == 0, f"{name}: {extra} on {ranks} ranks", result)
    events = read_events(check, out)
    check.that(events[0]["world_size"] == ranks and events[0]["global_batch_size"] == 4, f"{name}: batch fields")
    check.that(tuple(events[0][axis] for axis in ("pp", "dp", "tp")) == mesh, f"{name}: the mesh is reported")
    accumulated = f"_ga{4 // mesh[1]}" if mesh[1] < 4 else ""
    check.that(events[0]["exp"].endswith("_sl96" + accumulated + suffix), f"{name}: {events[0]['exp']} names the layout")
    check_phases(name, events, ranks)
    blocks = "1, 1" if "shared" in extra else "2, 2"
    check.that((f"pipeline stages of {blocks} blocks" in result.text) == (mesh[0] > 1), f"{name}: the stages are said", result)
    check.that(steps_of(events, "samples") == [4] * 6, f"{name}: samples of all ranks")
    check.that(all(bytes_sent > 0 for bytes_sent in steps_of(events, "comm_bytes")), f"{name}: traffic is counted")
    for key in ("loss", "grad_norm"):
        pairs = list(zip(steps_of(events, key), steps_of(expected, key)))
        worst = max(abs(a - b) / abs(b) for a, b in pairs)
        check.that(len(pairs) == 6 and worst < 1e-5, f"{name}: {key} equals one rank's within 1e-5: {worst:.1e}")

# --- a run is not overwritten by accident
result = launch(SQUAD, [*base, "--output_dir", str(reference)])
check.that(result.code == 2 and "--overwrite_output_dir" in result.text, "a run is not overwritten", result)
result = launch(SQUAD, [*base, "--output_dir", str(reference), "--overwrite_output_dir"])
check.that(result.code == 0 and len(list(csv.DictReader((reference / "results.csv").open()))) == 1,
           "--overwrite_output_dir replaces the run", result)

# --- ranks that are each the first of their node: both nodes are sampled, and the summary is of both
port = free_port()
out = folder / "two nodes"
ranks = [threading.Thread(target=lambda rank: results.insert(0, launch(
    SQUAD, [*base, "--output_dir", str(out), "--strategy", "zero2"],
    environment={"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port), "TESSERA_JOB_SECRET": "none"})), args=[rank]) for rank in range(2)]
results = []
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
check.that(all(result.code == 0 for result in results), "two nodes", results[0])
events = read_events(check, out)
end, own = events[-1], [event["cpu_rss_tree_bytes"] for event in events if event["event"] == "resource"]
check.that(end["nodes"] == 2 and end["cpu_rss_tree_peak_bytes"] >= max(own), f"two nodes: {end['nodes']}")
check.that(end["cpu_rss_tree_mean_bytes"] != round(sum(own) / len(own)), "two nodes: the mean is of the samples of both")
check.that(end["pinned_peak_bytes"] == 0 and end["gpu_mem_used_peak_bytes"] is None, "two nodes: ranks without GPUs use none")

# --- looking without touching
result = launch(SQUAD, [*squad, "--output_dir", str(folder / "dry"), "--dry_run"])
check.that(result.code == 0 and "parameters" in result.text and not (folder / "dry").exists(), "a dry run writes nothing",
           result)
result = launch(SQUAD, [*squad, "--print_config"])
check.that(result.code == 0 and json.loads(result.text)["seed"] == {"value": 42, "origin": "default"}, "print_config",
           result)
result = launch(SQUAD, ["--help", "all"])
check.that(result.code == 0 and "--strategy single|ddp|zero1|zero2|zero3" in result.text, "help", result)

# --- plain text, and rows of ids without labels: the same loss on one rank and on several
TEXT = "tessera-finetune-causal"
text = [*common, "--train_file", str(DATA / "sources" / "squad.txt"), "--max_steps", "3"]
losses = []
for name, extra in [("text", ["--per_device_train_batch_size", "4"]),
                    ("text_zero3", ["--per_device_train_batch_size", "2", "--ranks", "2", "--strategy", "zero3"])]:
    out = folder / name
    result = launch(TEXT, [*text, "--validation_file", str(DATA / "sources" / "squad.txt"), "--output_dir", str(out), *extra])
    check.that(result.code == 0 and "blocks of 96 tokens" in result.text, f"{name} trains", result)
    events = read_events(check, out)
    losses.append(steps_of(events, "loss"))
    check.that(steps_of(events, "supervised_tokens") == [4 * 95] * 3, "every token of a block but its first is a target")
    check.that({"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in (out / "final").iterdir()},
               f"{name}: final/ is a model directory")
check.that(all(abs(a - b) < 1e-5 * b for a, b in zip(*losses)), f"plain text on two ranks as on one: {losses}")
ids = folder / "ids.jsonl"
ids.write_text("".join(json.dumps({"input_ids": [5 + i, 6, 7] * 40, "special_tokens_mask": []}) + "\n" for i in range(8)))
result = launch(TEXT, [*common, "--train_ids", str(ids), "--max_steps", "2", "--output_dir", str(folder / "ids")])
check.that(result.code == 0 and "8 rows cut" in result.text and "special_tokens_mask" in result.text,
           "rows of ids need no labels", result)

ids.write_text("".join(json.dumps({"input_ids": [5 + i, 6, 7], "labels": i % 3}) + "\n" for i in range(8)))
result = launch(CLASSIFICATION, [*common, "--train_ids", str(ids), "--num_labels", "3", "--max_steps", "2", "--output_dir", str(folder / "class ids")])
check.that(result.code == 0 and json.loads((folder / "class ids/final/config.json").read_text())["id2label"] ==
           {str(i): f"LABEL_{i}" for i in range(3)}, "classes of rows of ids have transformers' names", result)

# --- no data: rows of random ids
runs = {}
for name, program, rows, extra in [("random", SQUAD, 4, []), ("random ranks", SQUAD, 2, ["--strategy", "zero2", "--ranks", "2"]),
                                   ("random packed", SQUAD, 4, ["--packing"]), ("random text", TEXT, 4, []),
                                   ("random classes", CLASSIFICATION, 4, ["--num_labels", "3"])]:
    result = launch(program, ["--model_config", "bloom-tiny", "--random_rows", "10", "--random_row_length", "12", "--max_seq_length", "32",
                              "--per_device_train_batch_size", str(rows), "--max_steps", "4", "--output_dir", str(folder / name), *extra])
    check.that(result.code == 0 and "random ids" in result.text, f"{name}: trains without a file and a tokenizer", result)
    runs[name] = read_events(check, folder / name)
losses = [steps_of(runs[name], "loss") for name in ("random", "random ranks", "random packed")]
check.that(all(abs(a - b) < 1e-5 * b for other in losses[1:] for a, b in zip(losses[0], other)), f"random rows on ranks and packed: {losses}")
start = next(event for event in runs["random"] if event["event"] == "run_start")
check.that(start["dataset"] == "random rows" and start["num_train_samples"] == 10 and len(start["dataset_sha256"]) == 64,
           f"random rows are recorded: {start}")
check.that(sum(steps_of(runs["random"], "supervised_tokens")) < sum(steps_of(runs["random text"], "supervised_tokens")),
           "answers alone are supervised for SQuAD's program")

# --- classification learns
out = folder / "classification"
result = launch(CLASSIFICATION, [*common[:-2], "--learning_rate", "3e-3", "--max_steps", "60", "--eval_steps", "60",
                                 "--train_file", str(DATA / "classification_train.csv"), "--validation_file",
                                 str(DATA / "classification_heldout.csv"), "--output_dir", str(out), "--ranks", "2",
                                 "--strategy", "zero2"])
check.that(result.code == 0, "a classification run ends well", result)
evals = [event for event in read_events(check, out) if event["event"] == "eval"]
classes = len(json.loads((out / "final" / "config.json").read_text())["id2label"])
check.that(evals and evals[-1]["eval_accuracy"] > 1.5 / classes,
           f"held-back accuracy {evals[-1]['eval_accuracy']:.2f} is above chance, 1/{classes}", result)

# --- memory that is not there: advice and exit code 3, and no final/
for size, limit, extra in [("bloom-560m", 4 << 30, []), ("bloom-7b1", None, ["--ranks", "2", "--strategy", "ddp"])]:
    out = folder / "oom"
    arguments = [*squad, "--output_dir", str(out), *extra]
    arguments[arguments.index("bloom-tiny")] = size
    if limit is None and 2 * 16 * 7.07e9 < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        continue  # this host could really hold two copies of bloom-7b1
    result = launch(SQUAD, arguments, memory_bytes=limit)
    check.that(result.code == 3, f"{size}: running out of memory is exit code 3", result)
    lines = [line for line in result.text.splitlines() if line.startswith("E ")]
    check.that(len(lines) == 1 and lines[0].count(" saves ") == 3 and
               all(word in lines[0] for word in ("out of memory", "parameters", "gradients", "optimizer", "activations")),
               f"{size}: memory by category and three flags with the bytes each saves", result)
    check.that(not out.exists(), f"{size}: nothing is written when the model does not fit", result)

# --- whatever these runs left can be reported
page = folder / "report.html"
result = launch("tessera-report", [str(folder), "--output", str(page)])
check.that(result.code == 0 and page.read_text().count("<svg") > 10, "a report of all runs", result)
result = launch("tessera-report", [str(reference), "--tables", "7"])
check.that(result.code == 0 and "No row: this table needs" in result.text, "tables that nothing fills", result)

# --- a dry step of a module, a strategy and an optimizer of one's own
dry = {ranks: launch("dry_step", ["zero3", str(ranks)]) for ranks in (1, 4)}
held = {ranks: float(re.search(r"parameters +([0-9.]+) MiB", result.text)[1]) for ranks, result in dry.items() if result.code == 0}
check.that(len(held) == 2 and abs(held[1] / held[4] - 4) < 0.1, f"dry_step says what a rank holds: {held}", dry[4])
check.that("all_gather on the data axis (ranks 0, 1, 2, 3)" in dry[4].text and "all_gather" not in dry[1].text, "dry_step says what a rank calls", dry[4])
result = launch("dry_step", ["zero9"])
check.that(result.code == 2 and "zero9" in result.text, "dry_step refuses an unknown strategy", result)

# --- quickstart prints the same losses everywhere
expected = launch("quickstart", ["single"])
check.that(expected.code == 0 and expected.text.count("loss") == 10, "quickstart trains", expected)
for strategy, ranks in [("ddp", 2), ("zero1", 3), ("zero2", 2), ("zero3", 4), ("fsdp", 3)]:
    result = launch("quickstart", [strategy, str(ranks)])
    losses = [[float(line.split()[-1]) for line in run.text.splitlines() if line.startswith("step")] for run in (result, expected)]
    pairs = list(zip(*losses))
    same = len(pairs) == 10 and all(abs(a - b) <= 1e-4 * b + 2e-6 for a, b in pairs)
    check.that(result.code == 0 and same, f"quickstart {strategy} on {ranks} ranks gives the losses of one", result)
result = launch("quickstart", ["zero9"])
check.that(result.code == 2 and "zero9" in result.text, "quickstart refuses an unknown strategy", result)

shutil.rmtree(folder)
check.finish()
