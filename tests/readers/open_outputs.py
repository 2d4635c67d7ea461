# SPDX-License-Identifier: MIT
"""What the programs write, opened with the libraries that others read it with.

Usage: open_outputs.py SOURCE_ROOT BIN_FOLDER, in the environment that run.sh makes.
"""
import csv
import json
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / "tests/programs"))
from support import DATA, ROOT, Checker, launch, read_events  # noqa: E402

import torch  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from transformers import (AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer,  # noqa: E402
                          PreTrainedTokenizerFast)
from transformers.utils.logging import disable_progress_bar  # noqa: E402

FIXTURES = ROOT / "tests/parity/huggingface"
PROGRAMS = {"causal": "tessera-finetune-squad", "gpt2": "tessera-finetune-squad", "llama": "tessera-finetune-squad",
            "llama_tied": "tessera-finetune-squad", "classification": "tessera-finetune-classification",
            "gpt2_classification": "tessera-finetune-classification", "llama_classification": "tessera-finetune-classification"}
LOGITS_TOLERANCE, LOSS_TOLERANCE = 1e-4, 2e-5  # as in tests/parity/huggingface: absolute, relative
ROWS = 12

check = Checker()
torch.set_num_threads(1)
disable_progress_bar()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_readers_"))


def relative(a, b):
    return abs(a - b) / abs(b)


def batches_of(name):
    stored = load_file(FIXTURES / name / "batches.safetensors")
    return [{key: value[step].long() for key, value in stored.items()} for step in range(len(stored["labels"]))]


def write_ids(path, batches):
    """Rows as --train_ids takes them: labels are not shifted there."""
    with path.open("w") as out:
        for batch in batches:
            for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"]):
                own = labels.item() if labels.dim() == 0 else [-100, *labels.tolist()[:-1]]
                out.write(json.dumps({"input_ids": ids.tolist(), "attention_mask": mask.tolist(), "labels": own}) + "\n")
    return str(path)


def open_model(directory):
    """With transformers; every weight of the directory is used and none is missing."""
    architecture = json.loads((directory / "config.json").read_text())["architectures"][0]
    auto = AutoModelForSequenceClassification if "Classification" in architecture else AutoModelForCausalLM
    model, info = auto.from_pretrained(directory, dtype="auto", output_loading_info=True)
    problems = {key: value for key, value in info.items() if value}
    check.that(not problems, f"{directory}: transformers finds every weight: {problems}")
    check.that(type(model).__name__ == architecture, f"{directory}: {architecture} is a {type(model).__name__}")
    return model.eval()


def logits_of(model, batch):
    with torch.no_grad():
        return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.float()


def loss_of(model, batch):
    logits, labels = logits_of(model, batch), batch["labels"].flatten()
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels, ignore_index=-100).item()


def run(name, case, batches, *flags):
    """A run of the fixture's model on these batches, one a step; the folder that it leaves."""
    out = folder / f"{name}-{case}"
    ids = write_ids(folder / f"{name}-{case}.jsonl", batches)
    evaluation = write_ids(folder / f"{name}-{case}-eval.jsonl", batches[:1])
    result = launch(PROGRAMS[name], ["--model", str(FIXTURES / name), "--train_ids", ids, "--validation_ids", evaluation, "--max_seq_length",
                                     "14", "--report_to", "jsonl,csv,tensorboard", "--output_dir", str(out), "--shuffle", "false", "--logging_steps", "1", "--max_steps",
                                     str(len(batches)), *flags])
    check.that(result.code == 0, f"{name}, {case}: the run ends well", result)
    return out


def check_events(out):
    """TensorBoard's numbers and the tables are those of metrics.jsonl, which fits its schema."""
    events = read_events(check, out)
    board = EventAccumulator(str(out / "tensorboard"))
    board.Reload()
    scalars = {tag: {item.step: item.value for item in board.Scalars(tag)} for tag in board.Tags()["scalars"]}
    written = 0
    for event in events:
        for key, value in event.items():
            if event["event"] not in ("step", "eval") or not isinstance(value, float) or key in ("time_unix_s", "elapsed_s"):
                continue
            tag = "eval/" + key.removeprefix("eval_") if event["event"] == "eval" else "train/" + key
            found = scalars.get(tag, {}).get(event["step"])
            check.that(found is not None and abs(found - value) <= 2**-23 * abs(value), f"{out.name}: TensorBoard has {tag} {value}: {found}")
            written += 1
    check.that(written > 0 and {"train/loss", "train/learning_rate", "eval/loss"} <= set(scalars), f"{out.name}: tags {sorted(scalars)}")
    with (out / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    known = {**events[0], **[event for event in events if event["event"] == "eval"][-1], **events[-1]}
    check.that(len(rows) == 1 and None not in rows[0] and None not in rows[0].values(), f"{out.name}: results.csv is one full row")
    same = {key: (text, known[key]) for key, text in rows[0].items() if isinstance(known.get(key), (int, float, str))
            and not isinstance(known[key], bool)}
    for key, (text, value) in same.items():
        check.that(text == ("'" + value if value[:1] in tuple("=+-@") else value) if isinstance(value, str) else text != "" and float(text) == value, f"{out.name}: results.csv, {key}: {text!r} for {value!r}")
    check.that({"run_id", "strategy", "train_loss_final", "eval_loss"} <= set(same), f"{out.name}: columns {sorted(same)}")
    with (out / "resources.csv").open(newline="") as file:
        samples = list(csv.DictReader(file))
    check.that(samples and all(None not in row and None not in row.values() for row in samples), f"{out.name}: resources.csv is a table")
    return events


# --- a learning rate of 0: the model that was read is written, and transformers computes the logits of the fixture with it
for name in PROGRAMS:
    out = run(name, "unchanged", batches_of(name)[:1], "--learning_rate", "0", "--weight_decay", "0", "--per_device_train_batch_size",
              str(ROWS))
    source, expected = load_file(FIXTURES / name / "model.safetensors"), load_file(FIXTURES / name / "expected.safetensors")["logits"]
    with safe_open(out / "final/model.safetensors", framework="pt") as file:
        check.that(file.metadata() == {"format": "pt"}, f"{name}: metadata {file.metadata()}")
        check.that(set(file.keys()) == set(source), f"{name}: other tensors: {set(file.keys()) ^ set(source)}")
        for key in set(file.keys()) & set(source):
            tensor = file.get_tensor(key)
            check.that(tensor.dtype == torch.float32 and torch.equal(tensor, source[key]), f"{name}: {key} is the one that was read")
    logits = logits_of(open_model(out / "final"), batches_of(name)[0])[:len(expected)]
    difference = (logits - expected).abs().max().item()
    check.that(logits.shape == expected.shape and difference <= LOGITS_TOLERANCE, f"{name}: logits differ by {difference:.1e}")

# --- trained in several layouts: transformers has the same loss with what was written, and with what it trained itself
for name, flags in [("causal", ["--strategy", "zero3", "--ranks", "3", "--per_device_train_batch_size", "4"]),
                    ("gpt2", ["--strategy", "fsdp", "--ranks", "4", "--per_device_train_batch_size", "3"]),
                    ("llama", ["--ranks", "2", "--tensor_parallel", "2", "--per_device_train_batch_size", "12"]),
                    ("classification", ["--strategy", "zero2", "--ranks", "4", "--pipeline_parallel", "2", "--per_device_train_batch_size",
                                        "3", "--gradient_accumulation_steps", "2"])]:
    fixture = json.loads((FIXTURES / name / "expected.json").read_text())
    training, batches = fixture["training"], batches_of(name)
    out = run(name, "trained", batches, *flags, "--save_strategy", "steps", *[part for key in ("learning_rate", "weight_decay", "warmup_steps", "max_grad_norm")
                                                  for part in (f"--{key}", str(training[key]))])
    loss = loss_of(open_model(out / "final"), batches[0])
    check.that(relative(loss, fixture["eval_loss"]) <= LOSS_TOLERANCE, f"{name}: trained to {loss}, transformers to {fixture['eval_loss']}")
    exported = folder / f"{name}-exported"
    result = launch("tessera-checkpoint", ["export", str(out), str(exported)])
    check.that(result.code == 0, f"{name}: its checkpoint is exported", result)
    check.that(torch.equal(logits_of(open_model(exported), batches[0]), logits_of(open_model(out / "final"), batches[0])),
               f"{name}: the export of its checkpoint has the logits of final/")
    evaluated = [event["eval_loss"] for event in check_events(out) if event["event"] == "eval"]
    check.that(evaluated and relative(evaluated[-1], loss) <= LOSS_TOLERANCE, f"{name}: evaluated {evaluated}, transformers {loss}")

# --- 16 bit: the dtype of the files is that of the model
for dtype, expected in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
    out = run("causal", dtype, batches_of("causal")[:1], "--dtype", dtype, "--learning_rate", "0", "--weight_decay", "0",
              "--per_device_train_batch_size", str(ROWS))
    model, source = open_model(out / "final"), load_file(FIXTURES / "causal/model.safetensors")
    for key, parameter in model.named_parameters():
        check.that(parameter.dtype == expected and torch.equal(parameter, source[key].to(expected)), f"{dtype}: {key} is the rounded one")

# --- the tokenizer that a run leaves
out = folder / "tokenizer"
result = launch("tessera-finetune-squad", ["--model_config", "bloom-tiny", "--tokenizer", str(DATA / "tokenizer"), "--train_file",
                                           str(DATA / "squad_sample.json"), "--max_steps", "1", "--max_seq_length", "64", "--output_dir",
                                           str(out)])
check.that(result.code == 0, "a run with a tokenizer ends well", result)
ours, theirs = AutoTokenizer.from_pretrained(out / "final"), PreTrainedTokenizerFast.from_pretrained(DATA / "tokenizer")
text = json.loads((DATA / "squad_sample.json").read_text())["data"][0]["paragraphs"][0]["context"]
ids = ours(text)["input_ids"]
check.that(len(ids) > 20 and ids == theirs(text)["input_ids"] and ours.decode(ids) == text, f"the tokenizer of final/: {ids[:8]}")
model = open_model(out / "final")
check.that(max(ids) < model.config.vocab_size and len(ours) <= model.config.vocab_size, "its ids are the model's")
check.that(logits_of(model, {"input_ids": torch.tensor([ids[:16]]), "attention_mask": torch.ones(1, 16).long()}).isfinite().all().item(),
           "transformers runs a model of a run on its tokenizer's ids")

shutil.rmtree(folder)
check.finish()
