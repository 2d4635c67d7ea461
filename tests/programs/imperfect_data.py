# SPDX-License-Identifier: MIT
"""Files with 1 % bad rows of each kind train and report the counts, on one and on three ranks; with --strict_data they stop.

Usage: imperfect_data.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import csv
import json
import pathlib
import shutil
import tempfile

from support import DATA, MPIRUN, Checker, launch, read_events

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_imperfect_data_"))
SQUAD, CLASSIFICATION = "tessera-finetune-squad", "tessera-finetune-classification"
common = ["--model_config", "bloom-tiny", "--tokenizer", str(DATA / "tokenizer"), "--max_seq_length", "128", "--max_steps", "2",
          "--per_device_train_batch_size", "2", "--save_final", "false"]


def bad_squad():
    """The sample with two questions each that are at the wrong place and too long, and one without text."""
    sample = json.loads((DATA / "squad_sample.json").read_text())
    questions = [qa for article in sample["data"] for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
    for i in (3, 60):
        questions[i]["answers"][0]["answer_start"] += 1
        questions[i + 10]["question"] = "Why " * 200 + "?"
    questions[100]["answers"][0]["text"] = ""
    return sample


def bad_table():
    rows = list(csv.DictReader((DATA / "classification_train.csv").open()))
    for i in range(4):
        rows[50 * i]["label"] = ""
        rows[50 * i + 7]["text"] = " "
    return rows


def write_table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


squad, table, lines, ids = (folder / name for name in ("squad.json", "table.csv", "lines.jsonl", "ids.jsonl"))
squad.write_text(json.dumps(bad_squad()))
write_table(table, bad_table())
lines.write_text("".join(json.dumps({key: value or None for key, value in row.items()}) + "\n" for row in bad_table()))
rows = [{"input_ids": [5, 6, 7], "labels": i % 3, "token_type_ids": [0, 0, 0]} for i in range(300)]
del rows[10]["labels"]
rows[20]["input_ids"] = []
rows[30]["input_ids"] = [5] * 200
ids.write_text("".join(json.dumps(row) + "\n" for row in rows))

place = "data[0].paragraphs[0].qas[3]"
CASES = [
    (SQUAD, ["--train_file", squad], {"answer not at its answer_start": 2, "question and answer longer than --max_seq_length 128": 2,
                                      "empty answer": 1}, f"{squad}: {place}"),
    (CLASSIFICATION, ["--train_file", table], {"no label": 4, "empty text": 4}, f"{table}:2"),
    (CLASSIFICATION, ["--train_file", lines], {"no label": 4, "empty text": 4}, f"{lines}:1"),
    (CLASSIFICATION, ["--train_ids", ids, "--num_labels", "3"], {"no label": 1, "no tokens": 1}, f"{ids}:11"),
]
for number, (program, data, kinds, first) in enumerate(CASES):
    data = [*map(str, data), *(["--validation_file", data[1]] if data[0] == "--train_file" and number < 2 else [])]
    data = [str(part) for part in data]
    for ranks in (1, 3):
        out = folder / f"out{number}_{ranks}"
        processes = MPIRUN and number % 2 == 0
        extra = ["--strategy", "ddp", *([] if processes else ["--ranks", "3"])] if ranks == 3 else []
        result = launch(program, [*common, *data, "--output_dir", str(out), *extra],
                        mpi_ranks=3 if ranks == 3 and processes else 0)
        what = f"{program} {data[1]} on {ranks} ranks"
        check.that(result.code == 0, f"{what}: trains", result)
        files = [event for event in read_events(check, out) if event["event"] == "data"]
        check.that([file["role"] for file in files] == ["train", "validation"][:len(files)] and
                   len(files) == data.count(data[1]), f"{what}: one event a file")
        for file in files:
            found = {issue["reason"]: issue["count"] for issue in file["issues"]}
            check.that(found == kinds and file["skipped_rows"] == sum(kinds.values()), f"{what}: counts {found}")
            check.that(file["issues"][0]["places"][0] == first, f"{what}: places {file['issues'][0]['places']}")
            check.that(all(len(issue["places"]) == min(3, issue["count"]) for issue in file["issues"]), f"{what}: three places")
        for reason, count in kinds.items():
            check.that(f"{reason} ({count})" in result.text, f"{what}: the console says {reason}", result)
        check.that(result.text.count("rows skipped") == len(files), f"{what}: said once a file", result)
    out = folder / f"strict{number}"
    for extra in ([], ["--ranks", "3", "--strategy", "ddp"]):
        result = launch(program, [*common, *data, "--output_dir", str(out), "--strict_data", *extra])
        errors = [line for line in result.text.splitlines() if line.startswith("E ")]
        check.that(result.code == 4 and len(errors) == 1 and first in errors[0] and not out.exists(),
                   f"{program} {data[1]}: --strict_data stops at {first}", result)

# --- what is said about columns and rows that were cut
result = launch(CLASSIFICATION, [*common, "--train_file", str(table), "--dry_run"])
check.that("text from text; label from label" in result.text, "the columns are said", result)
result = launch(CLASSIFICATION, [*common, *data, "--dry_run"])
check.that("1 rows cut" in result.text and "keys without effect: token_type_ids" in result.text, "cut rows and other keys", result)
result = launch(SQUAD, [*common, "--train_file", str(squad), "--dry_run"])
check.that("windows that hold the answer" in result.text, "windows are counted", result)

# --- more than 5 % stop anyway
worse = bad_table()
for row in worse[:21]:
    row["label"] = ""
write_table(folder / "worse.csv", worse)
result = launch(CLASSIFICATION, [*common, "--train_file", str(folder / "worse.csv"), "--dry_run"])
check.that(result.code == 4 and "more than 5 %" in result.text and "worse.csv:2, " in result.text, "too many bad rows", result)

# --- --validation_slice
out = folder / "slice"
result = launch(CLASSIFICATION, [*common, "--train_file", str(table), "--validation_file", str(table), "--validation_slice",
                                 "10:20", "--output_dir", str(out)])
evals = [event for event in read_events(check, out) if event["event"] == "eval"]
check.that(len(evals) == 1 and round(evals[0]["eval_samples_per_second"] * evals[0]["eval_runtime"]) == 10,
           f"ten rows are evaluated: {evals}", result)
result = launch(CLASSIFICATION, [*common, "--train_file", str(table), "--validation_slice", "0:5", "--dry_run"])
check.that(result.code == 2 and "--validation_file" in result.text, "a slice of nothing", result)

shutil.rmtree(folder)
check.finish()
