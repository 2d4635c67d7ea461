# SPDX-License-Identifier: MIT
"""Chats in every form: masks, long chats, rows shown, what is refused, resuming, answers in a terminal's place and to files.

Usage: chats.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from support import BIN, DATA, MPIRUN, Checker, launch, read_events

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_chats_"))
CHAT, GENERATE = "tessera-finetune-chat", "tessera-generate"
common = ["--model_config", "bloom-tiny", "--tokenizer", str(DATA / "tokenizer"), "--per_device_train_batch_size", "4"]
chatml = [*common, "--chat_template", "chatml"]
END = "<|im_end|>"


def written(name, text):
    (folder / name).write_text(text)
    return str(folder / name)


def lines(name, rows):
    return written(name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def exchange(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def chat(*exchanges, system="Be brief."):
    return {"messages": [{"role": "system", "content": system}, *sum((exchange(*e) for e in exchanges), [])]}


def shown(data, *flags):
    """The rows that --show_rows prints."""
    result = launch(CHAT, [*chatml, "--train_file", data, "--show_rows", "100", *flags])
    check.that(result.code == 0, "--show_rows ends well", result)
    rows = re.split(r"^--- row \d+ of .*: (\d+) tokens, (\d+) trained, between ⟦ and ⟧\n", result.text, flags=re.M)[1:]
    return [(int(rows[i]), int(rows[i + 1]), rows[i + 2][:-1]) for i in range(0, len(rows), 3)]


def answers(text):
    return re.findall("⟦(.*?)⟧", text, re.S)


FORMS = {
    "messages": {"messages": exchange("Hi", "Grüße!")},
    "prompt and completion": {"prompt": "Hi", "completion": "Grüße!"},
    "instruction, input and output": {"instruction": "Hi", "input": "", "output": "Grüße!"},
    "conversations": {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Grüße!"}]},
    "instruction, context and response": {"instruction": "Hi", "context": "", "response": "Grüße!"},
    "question and answer": {"question": "Hi", "answer": "Grüße!"},
}

# --- all forms are one text; a file may mix them, and may be an array
for name, row in FORMS.items():
    rows = shown(lines("form.jsonl", [row]))
    check.that([r[2] for r in rows] == [f"<|im_start|>user\nHi{END}\n<|im_start|>assistant\n⟦Grüße!{END}⟧\n"], f"{name}: {rows}")
mixed = lines("mixed.jsonl", FORMS.values())
result = launch(CHAT, [*chatml, "--train_file", mixed, "--dry_run"])
check.that(result.code == 0 and all(f"1 by {name}" in result.text or f"1 chats by {name}" in result.text for name in FORMS), "forms are said", result)
check.that("trained: the assistant's turns and their end tokens" in result.text and f"⟦Grüße!{END}⟧" in result.text, "the first row is shown", result)
array = written("mixed.json", json.dumps(list(FORMS.values()), indent=1))
check.that(shown(array) == shown(mixed), "an array has the same rows")

# --- what is trained
three = lines("three.jsonl", [chat(("One?", "1."), ("Two?", "2."), ("Three?", "3."))] * 8)
turns = [f"{n}.{END}" for n in (1, 2, 3)]
check.that(answers(shown(three)[0][2]) == turns, "all answers with their end tokens are trained")
check.that(answers(shown(three, "--train_on", "last")[0][2]) == turns[2:], "or the last one")
tokens, trained, text = shown(three, "--train_on", "all")[0]
check.that(tokens == trained and text.startswith("⟦<|im_start|>system") and text.count("⟦") == 1, "or everything")
out = folder / "counted"
result = launch(CHAT, [*chatml, "--train_file", three, "--max_steps", "1", "--output_dir", str(out), "--save_final", "false"])
step = [event for event in read_events(check, out) if event["event"] == "step"][0]
check.that(step["supervised_tokens"] == 4 * shown(three)[0][1], "a step counts the trained tokens", result)

prompted = lines("prompted.jsonl", [{"prompt": [*exchange("One?", "1."), *exchange("Two?", "2.")[:1]], "completion": exchange("Two?", "2.")[1:]}])
check.that(answers(shown(prompted)[0][2]) == [f"2.{END}"], "answers of a prompt are not trained")

# --- chats that are too long
whole = shown(three)[0][0]
dropped = shown(three, "--max_seq_length", str(whole - 1))[0]
check.that(dropped[2] == shown(lines("two.jsonl", [chat(("Two?", "2."), ("Three?", "3."))]))[0][2], f"the oldest exchange goes: {dropped}")
for flags, pattern in (([], r"8 chats longer than --max_seq_length \d+: 16 messages dropped"),
                       (["--long_chats", "skip"], "all 8 chats are longer than --max_seq_length"),
                       (["--long_chats", "cut", "--train_on", "all"], "8 of 8; raise --max_seq_length")):
    result = launch(CHAT, [*chatml, "--train_file", three, "--max_seq_length", str(whole - 1), "--dry_run", *flags])
    check.that(re.search(pattern, result.text) and result.code == (4 if flags else 0), f"{flags} is said", result)

part = lines("part.jsonl", [chat(("Hi", "Ho"))] * 4 + [chat(("Hi", "Ho " * 90))])
result = launch(CHAT, [*chatml, "--train_file", part, "--max_seq_length", "128", "--long_chats", "skip", "--dry_run"])
check.that(result.code == 0 and "1 chats longer than --max_seq_length 128 left out" in result.text, "some are left out", result)

# --- bad rows: counted, more than 5 % stop, --strict_data stops at the first
BAD = {"unknown role": {"messages": [{"role": "usr", "content": "x"}]},
       "empty content": {"messages": exchange("x", "")},
       "no content": {"messages": [{"role": "user"}]},
       "content that is not only text": {"messages": exchange([{"type": "image_url"}], "y")},
       "preference data": {"prompt": "x", "chosen": "y", "rejected": "z"},
       "no token is trained": {"messages": [{"role": "user", "content": "x"}]},
       "no chat": {"text": "x"}}
good = [chat(("Hi", f"Ho {i}")) for i in range(150)]
bad = lines("bad.jsonl", [*good, *BAD.values()])
out = folder / "bad"
result = launch(CHAT, [*chatml, "--train_file", bad, "--max_steps", "1", "--output_dir", str(out), "--save_final", "false"])
data = [event for event in read_events(check, out) if event["event"] == "data"][0]
check.that({issue["reason"]: issue["count"] for issue in data["issues"]} == dict.fromkeys(BAD, 1) and data["examples"] == 150, f"counted: {data}", result)
for number, (reason, row) in enumerate(BAD.items()):
    result = launch(CHAT, [*chatml, "--train_file", lines("one.jsonl", [*good[:2], row]), "--strict_data", "--output_dir", str(folder / "none")])
    errors = [line for line in result.text.splitlines() if line.startswith("E ")]
    check.that(result.code == 4 and len(errors) == 1 and "one.jsonl:3: " in errors[0] and not (folder / "none").exists(), f"{reason}: place", result)
    result = launch(CHAT, [*chatml, "--train_file", lines("one.jsonl", [*good[:2], row]), "--dry_run"])
    check.that(result.code == 4 and "more than 5 %" in result.text and f"{reason} (1)" in result.text, f"{reason}: too many", result)
twice = lines("twice.jsonl", [{"messages": [{"role": "user", "content": "a"}, *exchange("b", "c")]}])
result = launch(CHAT, [*common, "--chat_template", "mistral", "--train_file", twice, "--dry_run"])
check.that(result.code == 4 and "twice.jsonl:1" in result.text and "refused by the chat template" in result.text, "turns that a template refuses", result)
for flags, code, pieces in (
        ([*common, "--train_file", mixed], 2, ["no chat template", "--chat_template NAME", "chatml"]),
        ([*common, "--train_file", mixed, "--chat_template", "chatlm"], 2, ["chatlm", "chatml"]),
        ([*common, "--train_file", mixed, "--chat_template", written("f.jinja", "x\n{{ summon(messages) }}")], 2, ["f.jinja:2", "summon"]),
        ([*chatml, "--train_file", written("a.parquet", "PAR1")], 2, ["a.parquet", "scripts/parquet_to_jsonl.py"]),
        ([*chatml, "--train_file", written("cut.jsonl", '{"messages": [')], 4, ["cut.jsonl:1"]),
        ([*chatml, "--train_file", written("cut.json", '[{"prompt": "a", "completion": "b"},')], 4, ["cut.json", "no end"]),
        ([*common, "--random_rows", "8", "--show_rows", "1"], 2, ["--show_rows", "--train_file"])):
    result = launch(CHAT, [*flags, "--output_dir", str(folder / "none")])
    errors = [line for line in result.text.splitlines() if line.startswith("E ")]
    check.that(result.code == code and len(errors) == 1 and all(p in errors[0] for p in pieces) and not (folder / "none").exists(), f"refused: {pieces}", result)

# --- what a terminal obeys is shown, not sent, wherever rows and names of files are printed
ESCAPES, SHOWN = "\033]0;title\007\033[2J\u009b1m\u202e", r"\x1b]0;title\x07\x1b[2J\u009b1m\u202e"
hostile = lines("hostile.jsonl", [chat((f"Hi{ESCAPES}", f"Yes{ESCAPES}"))] * 30 + [{f"key{ESCAPES}": 1}])
for flags in (["--show_rows", "1"], ["--dry_run"]):
    result = launch(CHAT, [*chatml, "--train_file", hostile, *flags])
    check.that(result.code == 0 and not re.search("[\033\007\u009b\u202e]", result.text) and SHOWN in result.text, f"{flags}: escapes are shown", result)
table = written("hostile.csv", "label,text\n" + f"good{ESCAPES[:-2]},some words\nbad,other words\n" * 9)
result = launch("tessera-tokenize", ["--tokenizer", str(DATA / "tokenizer"), "--input", table])
check.that(result.code == 0 and "\033" not in result.text and r"good\x1b]0" in result.text, "names of classes", result)
result = launch("tessera-lint-ds", [written("ds.json", json.dumps({f"key{ESCAPES}": 1}))])
check.that(not re.search("[\033\007]", result.text) and r"key\x1b" in result.text, "names of keys", result)

# --- from the cache come the same rows and words; ranks and packing give the same numbers; a run goes on where it ended
many = lines("many.jsonl", [chat((f"What is {i}?", f"It is {i}, of course." * (i % 3 + 1)), ("Thanks!", "Welcome.")) for i in range(64)])
train = [*chatml, "--train_file", many, "--validation_file", many, "--max_steps", "4", "--eval_steps", "4", "--learning_rate", "1e-2",
         "--cache_dir", str(folder / "cache"), "--max_seq_length", "256"]


def run(name, *flags, mpi_ranks=0):
    result = launch(CHAT, [*train, "--output_dir", str(folder / name), *flags], mpi_ranks=mpi_ranks)
    check.that(result.code == 0, f"{name} ends well", result)
    events = read_events(check, folder / name)
    check.that(f"tessera-generate --model {folder / name}/final --chat" in result.text, "the last lines say how to talk to it", result)
    words = [re.sub(r"^I [\d:.]+ (\[rank \d+\] )?", "", line) for line in result.text.splitlines() if "by messages" in line]
    return ([event["loss"] for event in events if event["event"] == "step"], [event["eval_loss"] for event in events if event["event"] == "eval"],
            events[-1]["param_hash_final"], words)


first = run("first")
check.that(len(list((folder / "cache").glob("*.tokens"))) == 1 and run("again") == first, "rows of the cache are the same rows")
check.that(run("other", "--train_on", "last")[0] != first[0] and len(list((folder / "cache").glob("*.tokens"))) == 2, "other masks are other rows")
near = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 1e-5 * abs(y) for x, y in zip(a, b))
for name, flags, mpi in (("ranks", ["--strategy", "zero3", "--per_device_train_batch_size", "2", *([] if MPIRUN else ["--ranks", "2"])], 2 if MPIRUN else 0),
                         ("packed", ["--packing"], 0)):
    losses, evals, _, _ = run(name, *flags, mpi_ranks=mpi)
    check.that(near(losses, first[0]) and near(evals, first[1]), f"{name}: the same losses {losses} {first[0]}")
saving = ["--save_strategy", "steps", "--save_steps", "2"]
run("resumed", *saving)
shutil.rmtree(folder / "resumed/checkpoint-4")
result = launch(CHAT, [*train, "--output_dir", str(folder / "resumed"), *saving, "--resume_from_checkpoint", "auto"])
events = read_events(check, folder / "resumed")
check.that(result.code == 0 and events[-1]["param_hash_final"] == first[2], "a run goes on with the same numbers", result)
result = launch(CHAT, [*train, "--chat_template", "zephyr", "--output_dir", str(folder / "resumed"), *saving, "--resume_from_checkpoint", "auto"])
check.that("the data begins anew: the chat template" in result.text, "another template is other data", result)

# --- what was learnt is said: on held-out chats, to a file, and in a conversation
lesson = lines("lesson.jsonl", [chat((f"What is {i}+1?", f"It is {i + 1}."), ("Thanks!", "You are welcome 😀.")) for i in range(4)])
out = folder / "lesson"
result = launch(CHAT, [*common, "--chat_template", "llama-2", "--train_file", lesson, "--validation_file", lesson, "--generation", "--max_steps", "150",
                       "--eval_steps", "150", "--learning_rate", "1e-2", "--logging_steps", "150", "--output_dir", str(out)])
evals = [event for event in read_events(check, out) if event["event"] == "eval"]
check.that(evals and evals[-1]["eval_exact_match"] == 100, "every last answer is right", result)
check.that(all(near([e["eval_perplexity"]], [math.exp(e["eval_loss"])]) for e in evals), "perplexity belongs to the loss", result)
predictions = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
check.that([p["answer"] for p in predictions] == ["You are welcome 😀."] * 4 and all(p["match"] for p in predictions), f"{predictions}")
final = out / "final"
check.that("INST" in (final / "chat_template.jinja").read_text(), "final/ has the template")
result = launch(GENERATE, ["--model", str(final), "--chat", "--prompts", lesson])
found = [json.loads(line) for line in result.text.splitlines() if line.startswith("{")]
check.that(result.code == 0 and [f["messages"] for f in found] == [json.loads(line)["messages"] for line in pathlib.Path(lesson).read_text().splitlines()] and
           all(f["finish_reason"] == "stop" for f in found), "files of chats are answered", result)
for ranks in ([], ["--ranks", "2", "--strategy", "zero3"]):
    done = subprocess.run([str(BIN / GENERATE), "--model", str(final), "--chat", "--system", "Be brief.", *ranks],
                          input="What is 2+1?\n\nThanks!\n".encode(), stdout=subprocess.PIPE, timeout=300, env=os.environ)
    check.that(done.returncode == 0 and done.stdout.decode() == "It is 3.\nYou are welcome 😀.\n", f"a conversation remembers: {done.stdout.decode()}")
done = subprocess.run([str(BIN / GENERATE), "--model", str(final), "--chat", "--system", "Be brief."], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                      input=b"What is 2+1?\n\xff\xfe\nThanks!\n", timeout=300, env=os.environ)
check.that(done.returncode == 0 and done.stdout.decode() == "It is 3.\nYou are welcome 😀.\n" and b"left out, the conversation goes on" in done.stderr
           and b"UTF-8" in done.stderr, f"a line that cannot be read ends no conversation: {done}")
result = launch(GENERATE, ["--model", str(final), "--chat", "--prompts", lines("q.jsonl", [BAD["unknown role"]])])
check.that(result.code == 4 and "q.jsonl:1: " in result.text and '"usr"' in result.text, "bad chats are refused with their place", result)
result = launch(GENERATE, ["--model", str(final), "--system", "x", "--prompts", lesson])
check.that(result.code == 2 and "--chat" in result.text, "what is for chats needs --chat", result)

# --- a base without the template's tokens gets rows for them, the same ones under every layout, and keeps them
longer = folder / "longer"
shutil.copytree(DATA / "tokenizer", longer)
content = json.loads((longer / "tokenizer.json").read_text())
content["added_tokens"] += [{**content["added_tokens"][0], "id": 2000 + i, "content": name} for i, name in enumerate(("<|im_start|>", END))]
(longer / "tokenizer.json").write_text(json.dumps(content))
grow = ["--model", str(final), "--tokenizer", str(longer), "--chat_template", "chatml", "--train_file", lesson, "--learning_rate", "1e-2",
        "--max_steps", "150", "--logging_steps", "150"]
result = launch(CHAT, [*grow, "--output_dir", str(folder / "none")])
check.that(result.code == 2 and "2002 tokens" in result.text and "--resize_embeddings" in result.text, "tokens without rows are refused", result)
hashes = {}
for name, flags in (("one", ["--per_device_train_batch_size", "4"]),
                    ("two", ["--per_device_train_batch_size", "4", "--ranks", "2", "--strategy", "ddp", "--tensor_parallel", "2"])):
    result = launch(CHAT, [*grow, "--resize_embeddings", *flags, "--output_dir", str(folder / f"grown_{name}")])
    check.that(result.code == 0 and "the embedding grows from 2000 to 2002 rows" in result.text, f"rows are added on {name}", result)
    steps = [event["loss"] for event in read_events(check, folder / f"grown_{name}") if event["event"] == "step"]
    hashes[name] = steps[0]
check.that(near([hashes["one"]], [hashes["two"]]), f"the same rows under every layout: {hashes}")
grown = folder / "grown_one" / "final"
check.that(json.loads((grown / "config.json").read_text())["vocab_size"] == 2002, "final/ has the rows")
ends = json.loads((grown / "generation_config.json").read_text())["eos_token_id"]
check.that(ends[-1] == 2001 and len(ends) == len(set(ends)), f"final/ says where answers end: {ends}")
done = subprocess.run([str(BIN / GENERATE), "--model", str(grown), "--chat", "--system", "Be brief."], input=b"What is 2+1?\n", stdout=subprocess.PIPE, timeout=300)
check.that(done.stdout.decode() == "It is 3.\n", f"and stops at the new end token: {done.stdout.decode()}")
templates = longer / "additional_chat_templates"
templates.mkdir()
(templates / "tool_use.jinja").write_text("{{ messages }}")
shutil.copy(grown / "chat_template.jinja", longer)
result = launch(CHAT, ["--model", str(grown), "--tokenizer", str(longer), "--train_file", lesson, "--max_steps", "1", "--output_dir", str(folder / "several")])
kept = folder / "several" / "final" / "additional_chat_templates" / "tool_use.jinja"
check.that(result.code == 0 and kept.is_file() and kept.read_text() == "{{ messages }}", "final/ has all templates", result)

# --- a published template: chats in its training form, the model with its own, and talk by that one; another that rewrites answers
published = json.loads((DATA.parents[1] / "tests/unit/data/fixtures/published_chats.json").read_text())["templates"]
turns = lines("turns.jsonl", [{"messages": [*exchange(f"What is {i}+1?", f"It is {i + 1}."), *exchange("Thanks!", "Welcome.")]} for i in range(4)])


def tokenizer_with(name, template):
    directory = folder / name
    shutil.copytree(DATA / "tokenizer", directory)
    (directory / "chat_template.jinja").write_text(template)
    return str(directory)


def texts(name, template, *flags):
    result = launch(CHAT, ["--model_config", "bloom-tiny", "--tokenizer", tokenizer_with(name, template), "--train_file", turns, *flags])
    return result, [line for line in result.text.splitlines() if line.startswith("E ")]


qwen = published["Qwen3"]["text"]
out = folder / "qwen"
result, _ = texts("qwen_tokenizer", qwen, "--per_device_train_batch_size", "4", "--max_steps", "100", "--learning_rate", "1e-2", "--logging_steps", "100",
                  "--output_dir", str(out))
check.that(result.code == 0 and "4 chats in the training form of the Qwen3 chat template" in result.text and "⟦<think>\n\n</think>\n\nIt is 1." in result.text,
           "the training form is said", result)
check.that((out / "final/chat_template.jinja").read_text() == qwen, "final/ has the published template")
result = launch(GENERATE, ["--model", str(out / "final"), "--chat", "--prompts", turns, "--max_new_tokens", "60"])
found = [json.loads(line)["text"] for line in result.text.splitlines() if line.startswith("{")]
check.that(result.code == 0 and len(found) == 4 and all("Welcome." in text for text in found), f"what was trained is said: {found}", result)
mine = qwen + "{# mine #}"
result, _ = texts("mine", mine, "--show_rows", "1")
check.that(result.code == 0 and "1 chats whose template rewrites answers" in result.text and "⟦It is 1.<|im_end|>⟧" in result.text, "answers as they are written", result)
result, errors = texts("strict", mine, "--show_rows", "1", "--strict_data")
check.that(result.code == 2 and len(errors) == 1 and "turns.jsonl:1: " in errors[0] and "--train_on last" in errors[0], "strictly refused", result)
result, errors = texts("strict_last", published["DeepSeek-R1-Distill"]["text"] + "{# mine #}", "--show_rows", "1", "--strict_data")
check.that(result.code == 2 and len(errors) == 1 and "--train_on last" not in errors[0] and "{% generation %}" in errors[0], "no advice that does not help", result)

shutil.rmtree(folder)
check.finish()
