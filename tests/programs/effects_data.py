# SPDX-License-Identifier: MIT
"""Effects of the flags of the sections Model and Data.

Usage: effects_data.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import csv
import functools
import json
import shutil

from effects import DATA, NO_ROWS, ROWS, TEXTS, Effect, fresh, run, walk
from support import ROOT

FILES = fresh("files")
SQUAD, CLASSES, HELD_OUT = DATA / "squad_sample.json", DATA / "classification_train.csv", DATA / "classification_heldout.csv"
ANSWERS = {**TEXTS, "train_file": SQUAD, "max_seq_length": 128}
ALL = {**ROWS, "supervise": "all"}


def written(name, text):
    (FILES / name).write_text(text)
    return FILES / name


def lines(name, rows):
    return written(name, "".join(json.dumps(row) + "\n" for row in rows))


def squad(name, change):
    """The sample after a change to its articles."""
    sample = json.loads(SQUAD.read_text())
    change(sample["data"])
    return written(name, json.dumps(sample))


def without_answers(articles):
    for paragraph in (p for article in articles for p in article["paragraphs"]):
        paragraph["qas"][0].update(is_impossible=True, answers=[])


def one_answer_moved(articles):
    articles[0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] += 1


def table(name):
    """Two columns of texts and two of classes."""
    rows = list(csv.DictReader(CLASSES.open()))
    with (FILES / name).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "backwards", "label", "length"])
        writer.writerows([row["text"], row["text"][::-1], row["label"], len(row["text"]) % 3] for row in rows)
    return FILES / name


def tokenizer():
    """The sample's with half of its merges: texts have more tokens."""
    shutil.copytree(DATA / "tokenizer", FILES / "tokenizer")
    content = json.loads((DATA / "tokenizer/tokenizer.json").read_text())
    content["model"]["merges"] = content["model"]["merges"][:800]
    (FILES / "tokenizer/tokenizer.json").write_text(json.dumps(content))
    return FILES / "tokenizer"


def longer():
    """The sample's with one more token."""
    shutil.copytree(DATA / "tokenizer", FILES / "longer")
    content = json.loads((DATA / "tokenizer/tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 2000, "content": "<|im_end|>"})
    (FILES / "longer/tokenizer.json").write_text(json.dumps(content))
    return FILES / "longer"


SMALL = written("small.json", json.dumps({"model_type": "bloom", "vocab_size": 2000, "hidden_size": 8, "n_layer": 1, "n_head": 1}))


@functools.cache
def model(seed):
    """A directory of Hugging Face's form: what a run leaves in final/."""
    return run("causal", {**ROWS, "save_final": True, "seed": seed}).out / "final"


def with_cache(program, flags):
    """The folder of the cache lies where files of the output are looked for."""
    out = fresh() / "out"
    return run(program, {"output_dir": out, **{key: out / "cache" if value == "HERE" else value for key, value in flags.items()}})


tokens = lambda seen: seen.column("tokens")
targets = lambda seen: seen.column("supervised_tokens")
data = lambda seen: ([{key: e[key] for key in ("role", "rows", "examples", "windows", "text_columns", "label_columns")} for e in seen.all("data")],
                     seen.losses, seen.evals)
replaced = lambda seen: len(seen.says(": replaced "))
scores = lambda seen: (len(seen.evals), seen.evals)
fewer = lambda base, other: sum(tokens(other)) < sum(tokens(base))
more = lambda base, other: sum(tokens(other)) > sum(tokens(base))
IDS = [lines(f"ids{first}.jsonl", [{"input_ids": [first + i, 6, 7] * (i + 1)} for i in range(8)]) for first in (5, 50)]
BODIES = lines("bodies.jsonl", [{"text": "The river rises in the hills. " * 9, "body": "Roots settle after frost. " * 12} for _ in range(24)])
COLUMNS = table("columns.csv")

TALK = {**TEXTS, "train_file": lines("talk.jsonl", [{"messages": [{"role": role, "content": text} for role, text in (
    ("user", f"What is {i}?"), ("assistant", f"It is {i}."), ("user", "Thanks!"), ("assistant", "You are welcome."))]} for i in range(24)]),
    "chat_template": "chatml", "max_seq_length": 256}
DATED = written("dated.jinja", "{% for m in messages %}{{ m.role }} on {{ strftime_now('%d %b %Y') }}: {% generation %}{{ m.content }}\n"
                               "{% endgeneration %}{% endfor %}")
LONGER = lines("longer.jsonl", [{"messages": [{"role": role, "content": text} for role, text in (
    ("user", "Hi"), ("assistant", f"Hello {i}."))] * (3 if i % 3 == 0 else 1) + ([] if i % 3 else [
        {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "It is so. " * 8}])} for i in range(24)])
ASKED = lines("asked.jsonl", [{"prompt": f"How far is {i}?", "completion": f"It is {i} miles."} for i in range(24)])

EXPORTED = {**ROWS, "model_config": ROOT / "tests/data/programs/llama"}

walk("effects_data.py", {"Model", "Data"}, [
    Effect("model", "the weights that training begins with: the first loss", [model(2)], lambda seen: seen.losses[0],
           {**ROWS, "model_config": None, "model": model(1)}),
    Effect("model_config", "the model: its parameters are others, of a preset or of a file", ["gpt2-tiny", model(1) / "config.json"],
           lambda seen: (seen.start["num_parameters"], seen.losses), {**ROWS, "model_config": "bloom-mini"}),
    Effect("tokenizer", "tokens of the same text", [tokenizer()], tokens, ANSWERS, "squad", expect=more),
    Effect("resize_embeddings", "the model gets rows for tokens of the tokenizer that it does not have; without them exit code 2", [True],
           lambda seen: (seen.code, seen.start.get("num_parameters")), {**ANSWERS, "tokenizer": longer(), "model_config": SMALL}, "squad",
           code=2),
    Effect("program_operators", "no operator of an exported program is replaced: no line says so", ["aten"],
           replaced, {**EXPORTED, "program_report": True}, expect=lambda base, other: replaced(base) > 3 and replaced(other) == 0),
    Effect("program_tensor_rules", "ranks hold whole layers that they would share; a wrong rule is refused with exit code 4",
           [written("whole.json", '{"gate_proj": "whole", "up_proj": "whole", "down_proj": "whole"}'),
            written("wrong.json", '{"q_proj": "diagonal"}')],
           lambda seen: (seen.code, seen.held("parameter")), {**EXPORTED, "ranks": 2, "tensor_parallel": 2}, codes=(0, 4),
           expect=lambda base, other: other.code or other.held("parameter") > base.held("parameter")),
    Effect("program_report", "lines about what was replaced", [True], replaced, EXPORTED, expect=lambda base, other: replaced(base) == 0 and replaced(other) > 3),
    Effect("train_file", "rows to train on: their number and losses", [squad("less.json", lambda articles: articles.pop(0))],
           data, ANSWERS, "squad"),
    Effect("train_file", "blocks to train on: their number and losses", [BODIES], data, {**TEXTS, "train_file": DATA / "sources/squad.txt"}),
    Effect("train_file", "rows to train on: their number and losses", [HELD_OUT], data, {**TEXTS, "train_file": CLASSES}, "classification"),
    Effect("validation_file", "there are evaluations, and their scores are of this file", [HELD_OUT, CLASSES], scores,
           {**TEXTS, "train_file": CLASSES}, "classification"),
    Effect("supervise", "positions that the loss counts: all of them are more", ["all"], targets, program="squad",
           expect=lambda base, other: min(targets(other)) > max(targets(base))),
    Effect("label_padding", "padding is counted among the targets", ["include"], targets, ALL, "squad",
           expect=lambda base, other: sum(targets(other)) > sum(targets(base))),
    Effect("squad_v2", "questions without an answer become rows", [True], data,
           {**ANSWERS, "train_file": squad("v2.json", without_answers), "max_seq_length": 256}, "squad",
           expect=lambda base, other: other.start["num_train_samples"] > base.start["num_train_samples"]),
    Effect("doc_stride", "windows that long contexts are cut into: less shared, fewer windows", [4], data,
           {**ANSWERS, "max_seq_length": 96}, "squad", expect=lambda base, other: other.all("data")[0]["windows"] < base.all("data")[0]["windows"]),
    Effect("train_file", "rows to train on: their form and losses", [ASKED], data, TALK, "chat"),
    Effect("chat_template", "what stands around every turn: other tokens", ["phi", "zephyr"], tokens, TALK, "chat"),
    Effect("template_date", "the date that the template writes: other tokens", ["2026-11-28", "1999-01-01"], lambda seen: seen.losses,
           {**TALK, "chat_template": DATED, "template_date": "2026-02-03"}, "chat"),
    Effect("train_on", "positions that the loss counts: all are most, the last answer's are fewest", ["all", "last"], targets, TALK, "chat"),
    Effect("long_chats", "chats that are too long are left out; cut, more than 5 % lose an answer's end and the run stops", ["skip", "cut"],
           lambda seen: (seen.code, data(seen)), {**TALK, "train_file": LONGER, "max_seq_length": 200}, "chat", codes=(0, 4)),
    Effect("show_rows", "rows are printed, and the run stops before it begins", [1, 2], lambda seen: (len(seen.says("--- row ")), len(seen.steps)),
           TALK, "chat"),
    Effect("text_column", "the text of every line", ["body"], data, {**TEXTS, "train_file": BODIES}),
    Effect("text_column", "the text of every row", ["backwards", "text,backwards"], data, {**TEXTS, "train_file": COLUMNS, "label_column": "label"},
           "classification"),
    Effect("label_column", "the classes", ["length"], data, {**TEXTS, "train_file": COLUMNS, "text_column": "text"}, "classification"),
    Effect("num_labels", "classes that the head tells apart, and so the loss", [40], lambda seen: (seen.start["num_parameters"], seen.losses),
           {**TEXTS, "train_file": CLASSES}, "classification", expect=lambda base, other: other.losses[0] > base.losses[0]),
    Effect("train_ids", "rows to train on are this file's, not random", [{"train_ids": path, **NO_ROWS} for path in IDS], data),
    Effect("random_rows", "rows that there are", [5], data, expect=lambda base, other: other.start["num_train_samples"] == 5),
    Effect("random_row_length", "tokens of the rows; 0: the longest, each", [6, 0], tokens,
           expect=lambda base, other: tokens(other) == [4 * 32] * 3 or fewer(base, other)),
    Effect("validation_ids", "there are evaluations, and their scores are of this file", IDS, scores),
    Effect("train_slice", "rows to train on", ["0:8"], data, expect=lambda base, other: other.start["num_train_samples"] == 8),
    Effect("validation_slice", "rows to evaluate on: another loss", ["0:3"], scores, {**ROWS, "validation_ids": IDS[0]}),
    Effect("cache_dir", "the folder holds the tokenised file; none, and small files by default: nothing is kept", ["HERE", "none"], lambda seen: len(seen.files("cache/*")),
           ANSWERS, "squad", run=with_cache, alike={"none": [""]}),
    Effect("strict_data", "a row that cannot be used ends the run with exit code 4", [True],
           lambda seen: (seen.code, seen.says("1 rows? skipped|answer not at its answer_start")),
           {**ANSWERS, "train_file": squad("bad.json", one_answer_moved)}, "squad", codes=(4,)),
    Effect("shuffle", "the order of the rows", [False], tokens),
    Effect("max_seq_length", "rows are cut shorter", [8], tokens, {**ROWS, **NO_ROWS, "train_ids": IDS[0]}, expect=fewer),
    Effect("padding_side", "a row's first token is predicted at the padding before it, as in transformers: more targets", ["left"],
           targets, ALL, "squad", expect=lambda base, other: sum(targets(other)) > sum(targets(base))),
    Effect("packing", "fewer positions: no row is filled up to the longest", [True], tokens, expect=fewer),
    Effect("padding_free", "fewer positions: no row is filled up to the longest; auto: on GPUs", ["true", "false"], tokens,
           expect=lambda base, other: tokens(other) == tokens(base) or fewer(base, other), alike={"false": ["auto"]}),
    Effect("group_by_length", "which rows a batch has: those of one length need less padding in an epoch", [True], tokens,
           {**ROWS, "random_rows": 80, "max_steps": 20}, expect=fewer),
    Effect("pad_to_max_length", "more positions: every row has the whole length", [True], tokens,
           expect=lambda base, other: tokens(other) == [4 * 32] * 3),
    Effect("pad_to_multiple_of", "more positions: lengths are rounded up", [16], tokens,
           expect=lambda base, other: more(base, other) and all(count % 64 == 0 for count in tokens(other))),
])
