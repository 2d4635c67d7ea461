# SPDX-License-Identifier: MIT
"""A program with a model of its own: examples/own_model has what the training programs have.

Usage: own_model.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import json
import pathlib
import tempfile

from support import MPIRUN, Checker, launch, read_events

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_own_"))


def run(name, *flags, code=0, **how):
    output = folder / name
    arguments = ["--output_dir", str(output), "--per_device_train_batch_size", "5", "--gradient_accumulation_steps", "2",
                 "--per_device_eval_batch_size", "7", *flags]
    result = launch("own_model", arguments, **how)
    check.that(result.code == code, f"{name} ends with {code}", result)
    return result, output


def losses(output, kind="step", field="loss"):
    return [event[field] for event in read_events(check, output) if event["event"] == kind]


def close(a, b):
    return len(a) == len(b) and all(abs(x - y) <= 1e-5 * max(abs(x), abs(y)) for x, y in zip(a, b))


# An epoch is 1000 rows: 100 steps of 10 on one rank, and 25 of 40 on four, the last of 200 validation rows unevenly shared.
HALF = ["--num_train_epochs", "2", "--learning_rate", "1e-2", "--lr_scheduler_type", "constant"]
one, alone = run("alone", *HALF, "--gradient_accumulation_steps", "8", "--strategy", "single")
events = read_events(check, alone)
start = next(event for event in events if event["event"] == "run_start")
check.that(start["dataset"] == "spiral of 1000 points" and start["num_train_samples"] == 1000, f"run_start tells of the data: {start}")
check.that(start["num_parameters"] == 2 * 64 + 64 + 64 * 64 + 64 + 3 * 64 + 3, f"run_start counts parameters: {start['num_parameters']}")
number_of_base = start["num_parameters"]
check.that("_sl" not in start["exp"] and start["exp"].startswith("single_fp32_cpus1_bs5"), f"the run's name: {start['exp']}")
steps = losses(alone)
check.that(len(steps) == 50 and steps[-1] < 0.7 * steps[0], f"50 steps learn: {steps[0]} to {steps[-1]}")
evaluations = losses(alone, "eval", "eval_loss")
check.that(len(evaluations) == 2 and evaluations[1] < evaluations[0], f"an evaluation an epoch: {evaluations}")
check.that((alone / "final/model.safetensors").exists() and not (alone / "final/config.json").exists(), "final/ holds the weights")
check.that((alone / "results.csv").exists() and json.loads((alone / "config.json").read_text())["hidden"]["value"] == 64,
           "results.csv and config.json are written, with the program's own flag")

# The same numbers under every layout, whoever has no row of the last batch.
for name, flags, ranks in (("zero3", ["--strategy", "zero3"], 4), ("fsdp", ["--strategy", "fsdp"], 4),
                           ("pipeline", ["--pipeline_parallel", "2", "--strategy", "ddp", "--gradient_accumulation_steps", "4"], 4)):
    _, output = run(name, *HALF, "--ranks", str(ranks), *flags)
    check.that(close(losses(output), steps), f"{name}: the losses of one rank")
    check.that(close(losses(output, "eval", "eval_loss"), evaluations), f"{name}: the evaluations of one rank")
if MPIRUN:
    _, output = run("mpi", *HALF, "--strategy", "zero2", mpi_ranks=4)
    check.that(close(losses(output), steps), "over MPI: the losses of one rank")

# Stopped in the midst of an epoch, and going on under another layout.
run("resumed", *HALF, "--ranks", "4", "--strategy", "zero2", "--save_strategy", "steps", "--save_steps", "10", "--max_steps", "30")
again, output = run("resumed", *HALF, "--ranks", "2", "--strategy", "fsdp", "--gradient_accumulation_steps", "4", "--resume_from_checkpoint", "auto",
                    "--max_steps", "50")
check.that("going on from" in again.text and "the data begins anew" not in again.text, "the run goes on with its data", again)
check.that(close(losses(output)[-20:], steps[30:]), "a run that goes on has the losses of one that was never stopped")

# Adapters: the same numbers under every layout, also of a run that goes on under another one; only they are kept.
LORA = ["--learning_rate", "2e-2", "--lr_scheduler_type", "constant", "--lora_r", "4", "--lora_alpha", "8", "--lora_target_modules", "all-linear",
        "--max_steps", "24"]
result, adapted = run("lora", *LORA, "--gradient_accumulation_steps", "8")
start, steps = next(event for event in read_events(check, adapted) if event["event"] == "run_start"), losses(adapted)
trained = 4 * (2 + 64) + 4 * (64 + 64) + 4 * (64 + 3)
check.that(start["num_trainable_parameters"] == trained and start["num_parameters"] == number_of_base + trained and start["lora_r"] == 4,
           f"run_start counts what is trained: {start}")
check.that(f"trainable {trained / 1000:.1f}k" in result.text or f"trainable {trained}" in result.text, "the first line says so, too", result)
check.that(sorted(path.name for path in (adapted / "final").iterdir()) == ["adapter_config.json", "adapter_model.safetensors"], "final/ holds adapters")
config = json.loads((adapted / "final/adapter_config.json").read_text())
check.that((config["peft_type"], config["r"], config["lora_alpha"], config["target_modules"]) == ("LORA", 4, 8, ["0", "2", "4"]), f"PEFT's keys: {config}")
_, output = run("lora_zero3", *LORA, "--ranks", "4", "--strategy", "zero3", "--persistence_threshold", "0")
check.that(close(losses(output), steps), "zero3: adapters train as on one rank")
run("lora_resumed", *LORA, "--ranks", "4", "--strategy", "zero2", "--save_strategy", "steps", "--save_steps", "6", "--max_steps", "12")
saved = json.loads((folder / "lora_resumed/checkpoint-12/manifest.json").read_text())["tensors"]
parameters = [tensor["name"] for tensor in saved if tensor["kind"] == "parameter"]
check.that(len(parameters) == 6 and all("lora_" in name for name in parameters), f"a checkpoint holds adapters alone: {parameters}")
again, output = run("lora_resumed", *LORA, "--ranks", "2", "--strategy", "fsdp", "--gradient_accumulation_steps", "4", "--resume_from_checkpoint", "auto")
check.that("going on from" in again.text and close(losses(output)[-12:], steps[12:]), "adapters go on under another layout", again)
result, _ = run("lora_resumed", *HALF, "--resume_from_checkpoint", "auto", code=2)
check.that("with adapters" in result.text, "a run that trains every weight does not go on from adapters", result)
_, output = run("lora_further", *LORA[:4], "--adapter", str(adapted / "final"), "--max_steps", "1", "--gradient_accumulation_steps", "8")
check.that(losses(output)[0] < steps[0], f"a saved adapter is where training begins: {losses(output)}, not {steps[0]}")
(adapted / "final/adapter_config.json").write_text(json.dumps(config | {"r": 5}))
result, _ = run("lora_other", "--adapter", str(adapted / "final"), code=4)
check.that("rank 4" in result.text and "r = 5" in result.text, "an adapter of another rank is refused", result)

# Its own flag, other rows in the last step of an epoch, and what a program of one's own has no use for.
_, small = run("small", "--hidden", "8", "--max_steps", "2", "--dtype", "bf16", "--save_final", "false")
number = next(event for event in read_events(check, small) if event["event"] == "run_start")["num_parameters"]
check.that(number == 2 * 8 + 8 + 8 * 8 + 8 + 3 * 8 + 3, f"--hidden 8 makes a smaller model: {number}")
result, _ = run("help", "--help", "all")
for flag in ("--model_config", "--train_file", "--max_seq_length", "--packing", "--generation", "--recovery_test", "--predictions"):
    check.that(f"{flag} " not in result.text, f"--help does not offer {flag}")
for flag in ("--hidden", "--strategy", "--shuffle", "--save_steps", "--eval_steps", "--learning_rate"):
    check.that(f"{flag} " in result.text, f"--help offers {flag}", result)
result, output = run("unknown", "--train_file", "x", code=2)
check.that("train_file" in result.text and not output.exists(), "a flag of the language models is refused", result)
result, _ = run("wide", "--strategy", "zero3", "--tensor_parallel", "2", "--ranks", "2", code=2)
check.that("tensor" in result.text, "layers that cannot be shared are refused", result)
check.finish()
