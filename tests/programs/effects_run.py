# SPDX-License-Identifier: MIT
"""Effects of the flags of the sections Run and output, and General.

Usage: effects_run.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import json
import shutil
import signal
import subprocess

from effects import DATA, MPIRUN, ROWS, TEXTS, TIME_LIMIT_S, Effect, Run, command, environment, fresh, run, walk

FILES = fresh("files")


def written(name, content):
    (FILES / name).write_text(json.dumps(content))
    return FILES / name


def stones(name, answer):
    """Questions with one answer, in a text of a line."""
    text = "The stones are red blue green"
    answers = [{"text": answer, "answer_start": text.index(answer)}]
    return written(name, {"data": [{"paragraphs": [{"context": text, "qas": [
        {"id": f"{name}{i}", "question": f"What are stones {i}?", "answers": answers} for i in range(8)]}]}]})


def named(program, flags):
    """In a folder of its own, whose content is what is seen."""
    place = fresh()
    seen = run(program, {**flags, "output_dir": place / flags["output_dir"]})
    seen.place = sorted(path.name for path in place.iterdir())
    return seen


def twice(program, flags):
    out = fresh() / "out"
    run(program, {**flags, "output_dir": out, "overwrite_output_dir": None})
    return run(program, {**flags, "output_dir": out})


def going_on(program, flags):
    """Where auto looks there is a run of six steps, which may go on from its fourth."""
    out = fresh() / "out"
    if flags["resume_from_checkpoint"] == "auto":
        shutil.copytree(SAVED, out)
        (out / "metrics.jsonl").unlink()
        shutil.rmtree(out / "checkpoint-6")
    return run(program, {**flags, "output_dir": out})


def signalled(program, flags):
    """SIGTERM after the fifth step."""
    out = fresh() / "out"
    process = subprocess.Popen(command(program, {"output_dir": out, "logging_steps": 1, **flags}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment())
    lines = iter(process.stdout.readline, b"")
    any(line.startswith(b"step 5/") for line in lines)
    process.send_signal(signal.SIGTERM)
    text = b"".join(lines).decode()
    return Run(process.wait(TIME_LIMIT_S), text, out)


def on_two(program, flags):
    return run(program, flags, mpi=2 if MPIRUN else 0)


def saved_beside(seen):
    """Is a step reported between the one that is saved and its checkpoint?"""
    order = [event.get("step", "saved") for event in seen.events if event["event"] in ("step", "checkpoint")]
    return order[order.index(2) + 1] != "saved"


def best(seen):
    newest = max(seen.out.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    kept = json.loads((newest / "manifest.json").read_text())["run"]["best"]
    return kept["step"], kept["metric"]


def is_best(base, other):
    key = "eval_" + other.start["config"]["metric_for_best_model"]["value"]
    scores = [each[key] for each in other.evals]
    return best(other) == (1 + scores.index(max(scores)), max(scores))


def answers(seen):
    path = seen.out / "predictions.json"
    return json.loads(path.read_text()) if path.exists() else None


SAVING = {"save_strategy": "steps", "save_steps": 2}
WHOLE, PART = stones("whole.json", "red blue green"), stones("part.json", "blue green")
# It answers "red blue green", with one token less.
TAUGHT = run("squad", {**TEXTS, "train_file": WHOLE, "max_steps": 60, "lr_scheduler_type": "constant", "save_final": True}).out / "final"
SAVED = run("causal", {**ROWS, **SAVING, "max_steps": 6}).out
IDS = fresh() / "ids.jsonl"
IDS.write_text("".join(json.dumps({"input_ids": [5 + i, 6, 7] * (i + 1)}) + "\n" for i in range(8)))
EVALUATED = {**ROWS, "max_steps": 8, "validation_ids": IDS}
CLASSES = {**TEXTS, "train_file": DATA / "classification_train.csv", "validation_file": DATA / "classification_heldout.csv", "validation_slice": "0:40"}
# The loss falls a little in every step, too little to change any answer: by other scores the first evaluation is the best.
SLOW = {"learning_rate": 1e-5, "lr_scheduler_type": "constant", "max_steps": 4, "eval_steps": 1, "save_strategy": "steps", "save_steps": 1,
        "load_best_model_at_end": True, "save_total_limit": 1}
ASKED = {**TEXTS, "model_config": None, "tokenizer": None, "generation": True, "train_file": PART, "validation_file": PART}
TURNS = fresh() / "turns.jsonl"
TURNS.write_text("".join(json.dumps({"prompt": f"What is {i}?", "completion": f"It is {i}."}) + "\n" for i in range(8)))
HALF = {**ROWS, "dtype": "fp16", "loss_scale": 2.0**36, "max_steps": 8}
TWO = {**ROWS, "ranks": 2, "per_device_train_batch_size": 2}
STAGE_2 = written("stage2.json", {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}})

kept = lambda seen: seen.files("checkpoint-*")
steps = lambda seen: seen.column("step")
held = lambda seen: (seen.end.get("comm_bytes"), seen.held("parameter", "gradient", "optimizer", "buffer"))

walk("effects_run.py", {"Run and output", "General"}, [
    Effect("config", "values that the command line leaves out are the file's", [written("config.json", {"learning_rate": 1e-3})],
           lambda seen: seen.column("learning_rate"), {**ROWS, "learning_rate": None}),
    Effect("print_config", "values and their origin are printed, and nothing runs", [True], lambda seen: (seen.files(), seen.says('"origin": "command line"')),
           expect=lambda base, other: not other.files()),
    Effect("version", "the version is printed, and nothing runs", [True], lambda seen: (seen.files(), seen.says("^LibTorch .*")),
           expect=lambda base, other: not other.files()),
    Effect("help", "the flags are printed, and nothing runs", [True], lambda seen: (seen.files(), seen.says("Usage: .*")),
           expect=lambda base, other: not other.files()),
    Effect("output_dir", "where the files are", ["there"], lambda seen: seen.place, {**ROWS, "output_dir": "here"}, run=named),
    Effect("logging_steps", "steps that are reported: the first, every second, every fifth, every third of a share of 0.3", [2, 5, 0.3], steps, EVALUATED),
    Effect("eval_steps", "steps that are evaluated: the end of the epoch and of the run, every one, every third, every second of a share of 0.2, none",
           [1, 3, 0.2, -1],
           lambda seen: [event["step"] for event in seen.all("eval")], EVALUATED),
    Effect("generation", "answers are written, and scored", [True], lambda seen: (answers(seen), seen.evals),
           {**ASKED, "generation": False, "model": TAUGHT}, "squad", expect=lambda base, other: len(answers(other)) == 8),
    Effect("generation", "last turns are answered, and scored", [True], lambda seen: (seen.files("predictions*"), seen.evals),
           {**TEXTS, "chat_template": "chatml", "max_seq_length": 256, "train_file": TURNS, "validation_file": TURNS}, "chat",
           expect=lambda base, other: all("eval_exact_match" in e for e in other.evals)),
    Effect("generation_max_new_tokens", "how long answers are, and so their scores", [1], answers, {**ASKED, "model": TAUGHT}, "squad",
           expect=lambda base, other: max(map(len, answers(other).values())) < max(map(len, answers(base).values()))),
    Effect("predictions", "there is no table of predictions, and no F1", [False], lambda seen: (seen.files("predictions*"), [sorted(e) for e in seen.evals]),
           CLASSES, "classification", expect=lambda base, other: base.files("predictions*") and not other.files("predictions*")),
    Effect("overwrite_output_dir", "a run may take the place of another; without it exit code 2", [True], lambda seen: seen.code, code=2, run=twice),
    Effect("report_to", "which files there are", ["jsonl", "csv", "tensorboard", "none"],
           lambda seen: sorted({name.split(".out.")[0] for name in seen.files("*")})),
    Effect("save_strategy", "checkpoints that there are", ["steps", "epoch"], kept, {**ROWS, "max_steps": 8, "save_steps": 2, "save_strategy": "no"}),
    Effect("save_steps", "checkpoints that there are: every third, every fourth of a share of 0.5", [3, 0.5], kept, {**ROWS, **SAVING, "max_steps": 8}),
    Effect("save_total_limit", "checkpoints that are kept", [1], kept, {**ROWS, **SAVING, "max_steps": 8}, expect=lambda base, other: len(kept(other)) == 1),
    Effect("save_async", "whether the next step begins before a checkpoint is complete", [False], saved_beside, {**ROWS, **SAVING, "max_steps": 8}),
    Effect("save_on_signal", "exit code after SIGTERM: 75 and a checkpoint, or the signal's", [False], lambda seen: (seen.code, len(kept(seen))),
           {**ROWS, "max_steps": 10**6, "save_strategy": "steps", "save_steps": 10**6}, code=75, codes=(-signal.SIGTERM,), run=signalled),
    Effect("load_best_model_at_end", "the final weights are those of the best evaluation, and its checkpoint is kept", [True],
           lambda seen: (seen.weights, kept(seen)), {**CLASSES, **SLOW, "load_best_model_at_end": False, "metric_for_best_model": "accuracy"},
           "classification"),
    Effect("metric_for_best_model", "which checkpoint is the best, and its score", ["accuracy", "f1_macro", "f1_weighted"], best, {**CLASSES, **SLOW},
           "classification", expect=is_best),
    Effect("metric_for_best_model", "which checkpoint is the best, and its score", ["f1", "exact_match"], best, {**ASKED, **SLOW, "model": TAUGHT}, "squad",
           expect=is_best),
    Effect("resume_from_checkpoint", "the first step that is made; the others have the same losses", [SAVED / "checkpoint-2", "auto"], steps,
           {**ROWS, "max_steps": 6, "resume_from_checkpoint": "none"}, run=going_on,
           expect=lambda base, other: other.losses == base.losses[-len(other.losses):] and other.weights == base.weights),
    Effect("max_nonfinite_steps", "steps without a finite gradient before the run ends with exit code 6", [3], steps,
           {**ROWS, "learning_rate": 1e38, "lr_scheduler_type": "constant", "max_steps": 8}, code=6, codes=(6,)),
    Effect("max_overflow_steps", "steps that overflow before the run ends with exit code 6", [2], lambda seen: (seen.code, steps(seen)), HALF, codes=(6,)),
    Effect("save_final", "there is a model in final/", [True], lambda seen: seen.files("final/*")),
    Effect("deepspeed", "what the file says: gradients and optimizer state are shared out", [STAGE_2], held, TWO),
    Effect("deepspeed_defaults", "gradients are clipped or not where the file does not say", ["0.16"], lambda seen: seen.column("clip_coefficient"),
           {**TWO, "deepspeed": STAGE_2}, changes="numbers"),
    Effect("ranks", "ranks send, and each has fewer rows", [{"ranks": 2, "per_device_train_batch_size": 2}], held,
           expect=lambda base, other: other.end["comm_bytes"] > base.end["comm_bytes"] == 0),
    Effect("backend", "what carries the bytes; what cannot ends the run with exit code 2", ["mpi", "tcp", "local", "nccl"],
           lambda seen: (seen.code, seen.start.get("transport")), {**ROWS, "backend": "auto"}, run=on_two,
           codes=(0, 0, 2, 2) if MPIRUN else (2, 0, 0, 2), alike={"mpi": ["auto"], "local": ["auto"], "nccl": ["local", "mpi"]}),
    Effect("deterministic", "nothing", [True], lambda seen: None, bits=True, alike={"true": [""]}, gpu="on CPUs a run has the same bits anyway"),
    Effect("check_communication", "a line says that the first step's operations are those of a dry run", [True],
           lambda seen: len(seen.says("communication check: every rank")), {**TWO, "strategy": "zero3"},
           expect=lambda base, other: other.losses == base.losses and other.weights == base.weights),
    Effect("dry_run", "what would run is said, and nothing does", [True], lambda seen: (seen.files(), len(seen.says("One rank needs about"))),
           expect=lambda base, other: not other.files()),
    Effect("recovery_test", "a few steps, a kill and going on are tried and told, and nothing is left", [True],
           lambda seen: (seen.files(), len(seen.says("rehearsal: "))), expect=lambda base, other: not other.files()),
])
