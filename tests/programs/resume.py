# SPDX-License-Identifier: MIT
"""Runs that stop and go on: the same bits as without the stop, under the same layout; the same run under another.

Usage: resume.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import json
import pathlib
import shutil
import signal
import subprocess
import tempfile

from support import BIN, DATA, MPIRUN, TIME_LIMIT_S, Checker, launch, read_events

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_resume_"))
SQUAD = "tessera-finetune-squad"
STEPS = 8
common = ["--model_config", "bloom-tiny", "--tokenizer", str(DATA / "tokenizer"), "--max_seq_length", "64", "--learning_rate", "1e-3",
          "--train_file", str(DATA / "squad_sample.json"), "--save_final", "false"]
data = ["--train_slice", "0:18"]  # epochs of 5 steps, the last one not full
full = [*common, *data, "--max_steps", str(STEPS)]
saving = ["--save_strategy", "steps", "--save_steps", "3"]


def run(name, *arguments, mpi_ranks=0, code=0, place=None):
    out = place or folder / name
    result = launch(SQUAD, [*arguments, "--output_dir", str(out)], mpi_ranks=mpi_ranks)
    check.that(result.code == code, f"{name}: exit code {code}", result)
    return out, result


def seen(out):
    """The losses and norms by step, the last of each step, and the hash of the final parameters."""
    events = read_events(check, out)
    steps = {e["step"]: (e["loss"], e["grad_norm"], e["learning_rate"]) for e in events if e["event"] == "step"}
    return steps, events[-1].get("param_hash_final")


def checkpoints(out):
    return sorted(path.name for path in out.glob("checkpoint-*"))


def stopped_after(out, step, name):
    """What a run that was killed after this checkpoint leaves behind."""
    copy = folder / name
    shutil.copytree(out, copy)
    for path in copy.glob("checkpoint-*"):
        if int(path.name.split("-")[1]) > step:
            shutil.rmtree(path)
    return copy


def require_same(name, resumed, whole, first, out):
    (steps, digest), (expected, expected_digest) = resumed, whole
    for step in range(first, STEPS + 1):
        check.that(steps.get(step) == expected[step], f"{name}: step {step} is {steps.get(step)}, expected {expected[step]}")
    check.that(digest == expected_digest, f"{name}: final parameters {digest}, expected {expected_digest} ({out})")


# --- the same bits, stopped in the middle of the first and of the second epoch, with and without MPI
layouts = [
    ("one rank", ["--per_device_train_batch_size", "4", "--warmup_steps", "2"], 0),
    ("plateau", ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2", "--lr_scheduler_type", "reduce_lr_on_plateau",
                 "--lr_scheduler_kwargs", '{"patience": 0, "factor": 0.5}', "--validation_file", str(DATA / "squad_sample.json"),
                 "--validation_slice", "0:6", "--eval_steps", "1"], 0),
    ("zero3 bf16", ["--per_device_train_batch_size", "2", "--ranks", "2", "--strategy", "zero3", "--dtype", "bf16"], 0),
    ("offload", ["--per_device_train_batch_size", "2", "--ranks", "2", "--strategy", "zero1", "--offload", "optimizer"], 0),
    ("muon", ["--per_device_train_batch_size", "2", "--ranks", "2", "--strategy", "zero3", "--optim", "muon", "--optim_args", "lr=0.01"], 0),
    ("three axes", ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2", "--ranks", "8", "--strategy", "zero2",
                    "--pipeline_parallel", "2", "--tensor_parallel", "2"], 0),
    ("mpi", ["--per_device_train_batch_size", "2", "--strategy", "fsdp"], 2),
]
for name, layout, mpi_ranks in layouts:
    if mpi_ranks and not MPIRUN:
        continue
    out, _ = run(name, *full, *layout, *saving, mpi_ranks=mpi_ranks)
    check.that(checkpoints(out) == ["checkpoint-3", "checkpoint-6", "checkpoint-8"], f"{name}: {checkpoints(out)}")
    whole = seen(out)
    plain, _ = run(f"{name}, never saved", *full, *layout, mpi_ranks=mpi_ranks)
    require_same(f"{name}: saving changes nothing", whole, seen(plain), 1, out)
    for step in (3, 6):
        again, result = run(f"{name} from {step}", *full, *layout, "--resume_from_checkpoint", str(out / f"checkpoint-{step}"),
                            mpi_ranks=mpi_ranks)
        check.that(f"step {step}" in result.text and "begins anew" not in result.text, f"{name}: says where it goes on", result)
        require_same(f"{name} from step {step}", seen(again), whole, step + 1, again)
single = folder / "one rank"
single_layout = layouts[0][1]

# --- auto: begins where there is nothing, goes on in place, steps over what is damaged, and stops when nothing loads
out, result = run("auto begins", *full, *single_layout, *saving, "--resume_from_checkpoint", "auto", "--save_total_limit", "1")
check.that(checkpoints(out) == ["checkpoint-8"], f"one checkpoint is kept: {checkpoints(out)}")
require_same("auto begins", seen(out), seen(single), 1, out)
check.that("holds no checkpoint to go on from: the run begins at step 0" in result.text, "auto says that it begins", result)
auto = [*full, *single_layout, *saving, "--resume_from_checkpoint", "auto"]
for name, damage in [("auto", False), ("auto over damage", True)]:
    out = stopped_after(single, 6, name)
    (out / "checkpoint-9.tmp").mkdir()
    with (out / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"schema": "tess')  # the line that was being written
    if damage:
        shard = next((out / "checkpoint-6").glob("*.safetensors"))
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
    _, result = run(name, *auto, place=out)
    check.that(f"checkpoint-{3 if damage else 6}, step" in result.text, f"{name}: goes on from the newest that loads", result)
    check.that(("skipped: " in result.text and "checkpoint-6/" in result.text) or not damage, f"{name}: says what it skips", result)
    require_same(name, seen(out), seen(single), 1, out)
    check.that("checkpoint-8" in checkpoints(out), f"{name}: saves again: {checkpoints(out)}")
_, result = run("nothing left", *auto, place=out)
check.that("nothing is left to train" in result.text, "a run that has ended has nothing left to train", result)
out = stopped_after(single, 3, "nothing loads")
(out / "checkpoint-3" / "manifest.json").write_text("{}")
_, result = run("nothing loads", *auto, place=out, code=4)
check.that("checkpoint-3" in result.text and "--resume_from_checkpoint none" in result.text, "a damaged checkpoint is not left aside silently",
           result)

# --- another layout: the same rows in the same order, the same numbers within rounding
expected, _ = seen(single)
for name, layout in [("two ranks", ["--ranks", "2", "--strategy", "zero3", "--per_device_train_batch_size", "2", "--warmup_steps", "2"]),
                     ("pipeline", ["--ranks", "4", "--strategy", "fsdp", "--pipeline_parallel", "2", "--per_device_train_batch_size", "1",
                                   "--gradient_accumulation_steps", "2", "--warmup_steps", "2"]),
                     ("bf16", [*single_layout, "--dtype", "bf16", "--strategy", "zero1"])]:
    out, result = run(f"moved to {name}", *full, *layout, "--resume_from_checkpoint", str(single / "checkpoint-3"))
    check.that("--strategy \"single\" -> " in result.text, f"{name}: says what is other than in the checkpoint", result)
    steps, _ = seen(out)
    check.that(min(steps) == 4 and all(abs(steps[s][0] - expected[s][0]) < (2e-2 if name == "bf16" else 1e-5) * expected[s][0] for s in range(4, STEPS + 1)),
               f"{name}: losses {steps}, expected {expected}")

# --- other data: weights, moments and step go on, and the data begins anew
out, result = run("next slice", *common, "--train_slice", "18:26", *single_layout, "--num_train_epochs", "2", "--save_strategy", "epoch",
                  "--resume_from_checkpoint", str(single))
check.that("begins anew: " in result.text and "--train_slice 0:18 -> 18:26" in result.text, "another slice is said", result)
steps, _ = seen(out)
check.that(sorted(steps) == [9, 10, 11, 12], f"two epochs of two steps follow step 8: {sorted(steps)}")
check.that(checkpoints(out) == ["checkpoint-10", "checkpoint-12"], f"a checkpoint an epoch: {checkpoints(out)}")

# --- a signal to one rank: all save after the same step and end with 75, and the run goes on from there
layout = ["--ranks", "2", "--strategy", "zero2", "--per_device_train_batch_size", "2", "--lr_scheduler_type", "constant"]
for name, sent, mode in [("terminated", signal.SIGTERM, "true"), ("usr1", signal.SIGUSR1, "false")]:
    out = folder / name
    process = subprocess.Popen([str(BIN / SQUAD), *common, *data, *layout, "--max_steps", "100000", "--logging_steps", "1", "--save_strategy", "epoch", "--save_async", mode,
                                "--save_total_limit", "2", "--output_dir", str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = iter(process.stdout.readline, b"")
    check.that(any(line.startswith(b"step 7/") for line in lines), f"{name}: trains")
    process.send_signal(sent)
    text = b"".join(lines).decode()
    check.that(process.wait(TIME_LIMIT_S) == 75 and "stopped by a signal after step" in text, f"{name}: exit 75: {text[-1000:]}")
    last = max(seen(out)[0])
    check.that(f"checkpoint-{last}" in checkpoints(out) and len(checkpoints(out)) <= 2, f"{name}: {last}, {checkpoints(out)}")
    STEPS = last + 3
    run(name, *common, *data, *layout, "--max_steps", str(STEPS), "--resume_from_checkpoint", "auto", place=out)
    whole, _ = run(f"not {name}", *common, *data, *layout, "--max_steps", str(STEPS))
    require_same(name, seen(out), seen(whole), 1, out)

# --- the best model: its checkpoint is kept whatever the limit, also by the run that goes on, and final/ is of it
layout = ["--per_device_train_batch_size", "4", "--learning_rate", "3e-2", "--validation_file", str(DATA / "squad_sample.json"), "--validation_slice", "100:108",
          "--eval_steps", "1", "--lr_scheduler_type", "constant"]
best = [*[a for a in common if a not in ("--learning_rate", "1e-3")], *data, *layout, "--max_steps", "8", "--save_strategy", "steps", "--save_steps", "1",
        "--save_total_limit", "2", "--load_best_model_at_end"]
out, result = run("best", *best)
losses = {e["step"]: e["eval_loss"] for e in read_events(check, out) if e["event"] == "eval"}
winner = min(losses, key=losses.get)
check.that(winner < 7, f"the best evaluation is none of the last two: {losses}")
check.that(checkpoints(out) == sorted([f"checkpoint-{winner}", "checkpoint-8"]), f"the best is kept: {checkpoints(out)}, best {winner}")
check.that(f"the model is that of step {winner}" in result.text, "the best model is said", result)
short, _ = run("up to the best", *best[:best.index("--max_steps") + 1], str(winner))
check.that(seen(out)[1] == seen(short)[1], "final/ is of the best step")
again, result = run("best goes on", *best, "--resume_from_checkpoint", str(out / "checkpoint-8"))
check.that(f"the model is that of step {winner}" in result.text and seen(again)[1] == seen(short)[1], "what goes on knows the best", result)

# A copy goes on with its own checkpoints, whatever lies where the first run was.
moved = folder / "best moved"
shutil.copytree(out, moved)
shutil.rmtree(moved / "checkpoint-8")
shutil.rmtree(out)
unlimited = [flag for flag in best if flag not in ("--save_total_limit", "2")]
run("best", *unlimited, "--seed", "7", place=out)  # another run, with the same steps
_, result = run("best moved", *best, "--resume_from_checkpoint", str(moved / f"checkpoint-{winner}"), place=moved)
check.that(f"the model is that of step {winner}" in result.text and f"is the best: {moved}/" in result.text and seen(moved)[1] == seen(short)[1],
           "the best of a copy is the copy's", result)
goes_on = ["--resume_from_checkpoint", str(moved / "checkpoint-8")]
for reason, checkpoint in [("is of another run", out / f"checkpoint-{winner}"), ("is not there", None)]:
    shutil.rmtree(moved / f"checkpoint-{winner}")
    if checkpoint:
        shutil.copytree(checkpoint, moved / f"checkpoint-{winner}")
    _, result = run("best moved", *best, *goes_on, place=moved)
    check.that(f"the model stays that of the last step, although step {winner} is the best: {moved}/checkpoint-{winner} {reason}" in result.text,
               f"a best checkpoint {reason}", result)

# --- shares of all steps are those of the run that goes on, and the best needs evaluations at its checkpoints
shares = [*best, "--eval_steps", "0.25", "--save_steps", "0.5", "--save_total_limit", "0"]
evaluated = lambda out: [e["step"] for e in read_events(check, out) if e["event"] == "eval"]
out, _ = run("shares", *shares)
check.that((checkpoints(out), evaluated(out)) == (["checkpoint-4", "checkpoint-8"], [2, 4, 6, 8]), f"shares of 8 steps: {checkpoints(out)}, {evaluated(out)}")
longer, _ = run("shares of more", *shares, "--max_steps", "12", "--resume_from_checkpoint", str(out / "checkpoint-4"))
check.that((checkpoints(longer), evaluated(longer)) == (["checkpoint-12", "checkpoint-6"], [6, 9, 12]),
           f"shares of 12 steps: {checkpoints(longer)}, {evaluated(longer)}")
_, result = run("shares that do not meet", *shares, "--max_steps", "10", "--resume_from_checkpoint", str(out / "checkpoint-4"), code=2)
check.that("10 steps are saved every 5 (--save_steps) and evaluated every 3" in result.text, "shares that make other steps are refused", result)

# --- refused
_, result = run("no such path", *full, "--resume_from_checkpoint", str(folder / "nowhere"), code=2)
check.that("--resume_from_checkpoint" in result.text, "a path that is not there is named", result)
_, result = run("empty path", *full, "--resume_from_checkpoint", str(DATA), code=2)
check.that("holds no checkpoint" in result.text, "a directory without a checkpoint is named", result)
_, result = run("other model", *[a.replace("bloom-tiny", "gpt2-tiny") for a in full], "--resume_from_checkpoint", str(single / "checkpoint-3"), code=4)
check.that("checkpoint-3" in result.text, "a checkpoint of another model is refused", result)
adapters = [*full, "--lora_r", "2", "--per_device_train_batch_size", "4"]
out, _ = run("adapters", *adapters, *saving)
_, result = run("other base", *adapters, "--seed", "43", "--resume_from_checkpoint", str(out / "checkpoint-3"), code=2)
check.that("another base model" in result.text and "drawn from --seed 43" in result.text, "adapters do not go on over another base", result)
_, result = run("in the way", *full, place=single, code=2)
check.that("--resume_from_checkpoint auto" in result.text, "a run is not overwritten by accident", result)
run("overwritten", *full, "--overwrite_output_dir", place=single)
check.that(checkpoints(single) == [], f"an overwritten run leaves no checkpoints: {checkpoints(single)}")

shutil.rmtree(folder)
check.finish()
