# SPDX-License-Identifier: MIT
"""Answers, predictions and scores of the fine-tuning programs, against formulas of their own on the files they write.

Usage: scores.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import csv
import json
import math
import pathlib
import shutil
import tempfile

from squad_oracle import f1_of, normalise
from support import DATA, MPIRUN, Checker, launch, read_events

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_scores_"))
SQUAD, CLASSIFICATION = "tessera-finetune-squad", "tessera-finetune-classification"
LEARNT, ASKED = 12, 20  # questions that are trained on, and that are asked


def squad_scores(questions, predictions, v2=False):
    exact = f1 = 0
    for question in questions:
        answers = [a["text"] for a in question["answers"]] or [""]
        given = predictions[question["id"]]
        exact += max(normalise(a) == normalise(given) for a in answers)
        f1 += max(f1_of(a, given, v2) for a in answers)
    return 100 * exact / len(questions), 100 * f1 / len(questions)


def evals(events):
    return [event for event in events if event["event"] == "eval"]


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12)


# Questions with short contexts from the sample, one paragraph each.
sample = json.loads((DATA / "squad_sample.json").read_text())
pairs = [(p["context"], q) for a in sample["data"] for p in a["paragraphs"] for q in p["qas"]]
pairs = sorted(pairs, key=lambda pair: len(pair[0]))[:ASKED]


def write(name, pairs):
    paragraphs = [{"context": c, "qas": [q]} for c, q in pairs]
    path = folder / name
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return str(path)


questions = [q for _, q in pairs]
train, asked = write("train.json", pairs[:LEARNT]), write("asked.json", pairs)
common = ["--model_config", "bloom-tiny", "--tokenizer", str(DATA / "tokenizer"), "--max_seq_length", "160", "--learning_rate", "5e-3",
          "--per_device_train_batch_size", "4", "--per_device_eval_batch_size", "8", "--lr_scheduler_type", "constant"]

# --- a model that knows a part of the questions; the best of its checkpoints by F1
out = folder / "squad"
result = launch(SQUAD, [*common, "--train_file", train, "--validation_file", asked, "--generation", "--generation_max_new_tokens", "16",
                        "--max_steps", "240", "--eval_steps", "80", "--save_strategy", "steps", "--save_steps", "80", "--save_total_limit", "1",
                        "--load_best_model_at_end", "--metric_for_best_model", "eval_f1", "--output_dir", str(out)])
check.that(result.code == 0, "a run with --generation ends well", result)
rounds = evals(read_events(check, out))
check.that(len(rounds) == 3 and all("eval_exact_match" in e and "eval_f1" in e for e in rounds), "every evaluation has both scores", result)
last, best = rounds[-1], max(rounds, key=lambda e: e["eval_f1"])
predictions = json.loads((out / "predictions.json").read_text())
nbest = json.loads((out / "nbest_predictions.json").read_text())
exact, f1 = squad_scores(questions, predictions)
check.that(list(predictions) == [q["id"] for q in questions], "every question is answered, in the file's order")
check.that(close(exact, best["eval_exact_match"]) and close(f1, best["eval_f1"]), f"scores are the official ones: {exact} {f1} {best}")
check.that(30 <= exact <= 90, f"a part of the questions is answered: {exact}")
check.that(all(nbest[i][0]["text"] == text for i, text in predictions.items()), "the best candidate is the prediction")
check.that(all(close(sum(c["probability"] for c in list_), 1) for list_ in nbest.values()), "probabilities of candidates add up")
scores = json.loads((out / "scores.json").read_text())
check.that(close(scores["exact_match"], exact) and close(scores["f1"], f1) and len(scores) == 2, f"scores.json: {scores}")
row = next(csv.DictReader((out / "results.csv").open()))
check.that(close(float(row["eval_f1"]), last["eval_f1"]), "results.csv has the last score")
check.that((out / f"checkpoint-{best['step']}").exists(), f"the checkpoint of the best F1, step {best['step']}, is kept", result)
check.that(best is last or f"the model is that of step {best['step']}" in result.text, "and final/ is made of it", result)

# --- a worse evaluation later leaves the predictions of the best one
kept = (out / "predictions.json").read_text()
faster = [part if part != "5e-3" else "1" for part in common]
result = launch(SQUAD, [*faster, "--train_file", train, "--validation_file", asked, "--generation", "--generation_max_new_tokens", "16",
                        "--resume_from_checkpoint", "auto", "--max_steps", "244", "--eval_steps", "244",
                        "--save_strategy", "steps", "--save_steps", "244", "--load_best_model_at_end", "--metric_for_best_model",
                        "eval_f1", "--output_dir", str(out)])
check.that(result.code == 0, "the run goes on", result)
worse = evals(read_events(check, out))[-1]
check.that(worse["step"] == 244 and worse["eval_f1"] < best["eval_f1"], f"and gets worse: {worse}", result)
check.that((out / "predictions.json").read_text() == kept, "predictions.json is of the best evaluation", result)

# --- the same answers from every layout, with contexts whole and cut into windows
model = ["--model", str(out / "final"), *common[4:]]
once = ["--train_file", train, "--validation_file", asked, "--generation", "--generation_max_new_tokens", "16", "--max_steps", "1",
        "--learning_rate", "0", "--save_final", "false"]
once = [*[part for part in model if part not in ("--learning_rate", "5e-3")], *once]
answers = {}
for name, extra in [("one", []), ("zero3", ["--ranks", "2", "--strategy", "zero3"]),
                    ("stages", ["--ranks", "2", "--pipeline_parallel", "2"]), ("tensor", ["--ranks", "2", "--tensor_parallel", "2"]),
                    ("windows", ["--max_seq_length", "64", "--doc_stride", "8"]),
                    ("windows zero2", ["--max_seq_length", "64", "--doc_stride", "8", "--ranks", "2", "--strategy", "zero2"])]:
    arguments = list(once)
    if "--max_seq_length" in extra:
        del arguments[arguments.index("--max_seq_length"):][:2]
        position = arguments.index("--max_seq_length")
        arguments = arguments[:position] + arguments[position + 2:]
    place = folder / name
    result = launch(SQUAD, [*arguments, *extra, "--output_dir", str(place)])
    check.that(result.code == 0, f"{name}: answers", result)
    answers[name] = json.loads((place / "predictions.json").read_text())
    event = evals(read_events(check, place))[-1]
    exact, f1 = squad_scores(questions, answers[name])
    check.that(close(exact, event["eval_exact_match"]) and close(f1, event["eval_f1"]), f"{name}: scores are the official ones")
for name in ("zero3", "stages", "tensor"):
    check.that(answers[name] == answers["one"], f"{name}: the answers of one rank")
check.that(answers["windows zero2"] == answers["windows"], "windows: the answers of one rank")
candidates = json.loads((folder / "windows/nbest_predictions.json").read_text())
check.that(any(len(list_) > 1 for list_ in candidates.values()), "windows give several candidates")
for list_ in candidates.values():
    texts = [c for c in list_ if c["text"]]
    check.that(not texts or list_[0] == max(texts, key=lambda c: c["log_probability"]), f"the likeliest candidate comes first: {list_}")

# --- SQuAD v2: some questions have no answer
v2_pairs = [(c, {**q, "answers": [], "is_impossible": True} if i % 3 == 0 else q) for i, (c, q) in enumerate(pairs)]
v2_train, v2_asked = write("v2_train.json", v2_pairs[:LEARNT]), write("v2_asked.json", v2_pairs)
out = folder / "v2"
result = launch(SQUAD, [*common, "--squad_v2", "--train_file", v2_train, "--validation_file", v2_asked, "--generation", "--generation_max_new_tokens",
                        "16", "--max_steps", "80", "--eval_steps", "80", "--ranks", "2", "--output_dir", str(out)])
check.that(result.code == 0, "a v2 run ends well", result)
v2_questions = [q for _, q in v2_pairs]
predictions, event = json.loads((out / "predictions.json").read_text()), evals(read_events(check, out))[-1]
exact, f1 = squad_scores(v2_questions, predictions, v2=True)
check.that(close(exact, event["eval_exact_match"]) and close(f1, event["eval_f1"]), "v2: scores are the official ones")
scores, none = json.loads((out / "scores.json").read_text()), json.loads((out / "na_prob.json").read_text())
for prefix, part in (("HasAns_", [q for q in v2_questions if q["answers"]]), ("NoAns_", [q for q in v2_questions if not q["answers"]])):
    exact, f1 = squad_scores(part, predictions, v2=True)
    check.that(close(scores[prefix + "exact"], exact) and close(scores[prefix + "f1"], f1) and scores[prefix + "total"] == len(part), prefix)
check.that(scores["best_exact"] >= scores["exact"] - 1e-9 and 0 <= scores["best_f1_thresh"] <= 1, f"best thresholds: {scores}")
check.that(set(none) == set(predictions) and all(0 <= p <= 1 for p in none.values()), "probabilities of no answer")
learnt = v2_questions[:LEARNT]
sure, unsure = ([none[q["id"]] for q in learnt if bool(q["answers"]) == wanted] for wanted in (False, True))
check.that(min(sure) > max(unsure), f"no answer is likelier where there is none: {sure} {unsure}")

# --- a model that has learnt to say nothing: an empty answer is the last candidate however likely it is
arguments = [part for part in common if part not in ("--max_seq_length", "160", "--learning_rate", "5e-3", "--model_config", "bloom-tiny")]
place = folder / "silent windows"
result = launch(SQUAD, [*arguments, "--model", str(out / "final"), "--train_file", train, "--validation_file", asked, "--generation",
                        "--generation_max_new_tokens", "16", "--max_steps", "1", "--learning_rate", "0", "--save_final", "false", "--max_seq_length",
                        "64", "--doc_stride", "8", "--output_dir", str(place)])
check.that(result.code == 0, "silent windows: answers", result)
lists = json.loads((place / "nbest_predictions.json").read_text()).values()
silent = [list_ for list_ in lists if len(list_) > 1 and not max(list_, key=lambda c: c["log_probability"])["text"]]
check.that(silent, "some windows are silent with the most confidence")
check.that(all(list_[0]["text"] and not list_[-1]["text"] for list_ in silent), f"and are the last candidates: {silent}")

# --- nothing to score
nothing = write("nothing.json", [(c, {**q, "answers": [], "is_impossible": True}) for c, q in pairs])
for extra in ([], ["--ranks", "2"]):
    place = folder / "nothing"
    result = launch(SQUAD, [*common, "--train_file", train, "--validation_file", nothing, "--generation", "--max_steps", "1", "--output_dir",
                            str(place), *extra])
    errors = [line for line in result.text.splitlines() if line.startswith("E ")]
    check.that(result.code == 4 and len(errors) == 1 and "nothing.json" in errors[0] and not place.exists(), f"questions without answers {extra}",
               result)

# --- classification
labels = [*common, "--train_file", str(DATA / "classification_train.csv"), "--validation_file", str(DATA / "classification_heldout.csv"),
          "--max_steps", "40", "--eval_steps", "40", "--learning_rate", "3e-3"]
position = labels.index("--learning_rate")
labels = labels[:position] + labels[position + 2:]
tables = {}
for name, extra in [("classes", ["--ranks", "2", "--strategy", "zero2", "--per_device_train_batch_size", "2"]),
                    ("packed classes", ["--packing", "--ranks", "3", "--per_device_train_batch_size", "4"])]:
    out = folder / name
    arguments = list(labels)
    position = arguments.index("--per_device_train_batch_size")
    result = launch(CLASSIFICATION, [*arguments[:position], *arguments[position + 2:], *extra, "--output_dir", str(out)])
    check.that(result.code == 0, f"{name}: a run ends well", result)
    event, rows = evals(read_events(check, out))[-1], list(csv.DictReader((out / "predictions.csv").open()))
    names = [key[2:] for key in rows[0] if key.startswith("p_")]
    held_back = list(csv.DictReader((DATA / "classification_heldout.csv").open()))
    label_key = next(key for key in held_back[0] if key in ("label", "class", "category"))
    check.that([row["label"] for row in rows] == [row[label_key] for row in held_back], f"{name}: a line a row, in the file's order")
    for row in rows:
        chances = {n: float(row["p_" + n]) for n in names}
        check.that(abs(sum(chances.values()) - 1) < 1e-9 and chances[row["prediction"]] == max(chances.values()), f"{name}: {row}")
    confusion = [[sum(r["label"] == a and r["prediction"] == b for r in rows) for b in names] for a in names]
    f1 = [2 * confusion[i][i] / max(1, sum(confusion[i]) + sum(r[i] for r in confusion)) for i in range(len(names))]
    support = [sum(line) for line in confusion]
    known = [i for i in range(len(names)) if support[i] + sum(r[i] for r in confusion)]
    check.that(close(event["eval_f1_macro"], sum(f1) / len(known)), f"{name}: macro F1 {event['eval_f1_macro']}")
    check.that(close(event["eval_f1_weighted"], sum(f * s for f, s in zip(f1, support)) / len(rows)), f"{name}: weighted F1")
    check.that(close(event["eval_accuracy"], sum(confusion[i][i] for i in range(len(names))) / len(rows)), f"{name}: accuracy")
    check.that(event["eval_f1_macro"] > 1.5 / len(names), f"{name}: better than chance")
    scores = json.loads((out / "scores.json").read_text())
    check.that(scores["confusion"] == confusion and [c["name"] for c in scores["classes"]] == names, f"{name}: confusion matrix")

shutil.rmtree(folder)
check.finish()
