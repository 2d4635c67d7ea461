# SPDX-License-Identifier: MIT
"""Ranks, and runs that go on, whose files or clocks are not those of the others.

Every file that a run reads is changed in turn for one of two ranks, which then must not train together. Dates of chat templates are those of rank 0,
and of the run that goes on.

Usage: other_inputs.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from start_ranks import free_port  # noqa: E402
from support import BIN, DATA, ROOT, TIME_LIMIT_S, Checker, Result, launch, read_events  # noqa: E402

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_inputs_"))
PROGRAMS = {"squad": "tessera-finetune-squad", "causal": "tessera-finetune-causal", "classification": "tessera-finetune-classification",
            "chat": "tessera-finetune-chat", "generate": "tessera-generate"}
DRY = {"dry_run": "true", "max_steps": 1}
SMALL = {"model_config": "bloom-tiny", "tokenizer": "tokenizer", "max_seq_length": 128}
DATED = ("{% for m in messages %}{{ m.role }} {{ strftime_now('%d %b %Y') }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
         "{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}")


def words(flags):
    return [f"--{name}={value}" for name, value in flags.items()]


def ranks_of(program, flags, places, environments):
    """What processes say that have these folders as theirs, one each, and the code that all end with."""
    port = str(free_port())
    command = [str(BIN / PROGRAMS[program]), *words(flags)]
    ranks = [subprocess.Popen(command, cwd=places[r], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={
        **os.environ, "RANK": str(r), "WORLD_SIZE": str(len(places)), "LOCAL_RANK": str(r), "LOCAL_WORLD_SIZE": str(len(places)), "MASTER_PORT": port,
        "TESSERA_CACHE_DIR": "none", "CUDA_VISIBLE_DEVICES": "", **environments[r]}) for r in range(len(places))]
    texts = [rank.communicate(timeout=TIME_LIMIT_S)[0].decode(errors="replace") for rank in ranks]
    codes = {rank.returncode for rank in ranks}
    return Result(codes.pop() if len(codes) == 1 else codes, "\n".join(texts), " ".join(command))


def chats(count, word="far"):
    return "".join(json.dumps({"prompt": f"How {word} is {i}?", "completion": f"It is {i} miles."}) + "\n" for i in range(count))


def ids(first):
    return "".join(json.dumps({"input_ids": [first + i, 6, 7, 8]}) + "\n" for i in range(12))


def fewer_merges(path):
    content = json.loads(path.read_text())
    content["model"]["merges"] = content["model"]["merges"][:600]
    path.write_text(json.dumps(content))


def replaced(old, new):
    def change(path):
        text = path.read_text()
        assert old in text, (path, old)
        path.write_text(text.replace(old, new))
    return change


def one_more_space(path):
    path.write_text(path.read_text() + " ")


def one_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def last_element(path):
    """The last tensor's beginning: of a model that was trained further."""
    content = bytearray(path.read_bytes())
    header = json.loads(content[8:8 + int.from_bytes(content[:8], "little")])
    begin = max(tensor["data_offsets"][0] for name, tensor in header.items() if name != "__metadata__")
    content[8 + int.from_bytes(content[:8], "little") + begin + 1] ^= 1
    path.write_bytes(content)


# What becomes of a file by its name, and what the refusal names.
CHANGES = {
    "tokenizer.json": (fewer_merges, "the tokenizer"), "tokenizer_config.json": (replaced('"eos_token"', '"old_eos_token"'), "the tokenizer"),
    "train.txt": (replaced(" the ", " teh "), "the training data"), "valid.txt": (replaced(" the ", " teh "), "the validation"),
    "train.json": (replaced(" the ", " teh "), "the training data"), "valid.json": (replaced(" the ", " teh "), "the validation"),
    "train.csv": (replaced(" the ", " teh "), "the training data"), "valid.csv": (replaced(" the ", " teh "), "the validation"),
    "train.jsonl": (replaced(" far ", " fra "), "the training data"), "valid.jsonl": (replaced(" far ", " fra "), "the validation"),
    "train.ids": (replaced("6, 7", "7, 6"), "the training data"), "valid.ids": (replaced("6, 7", "7, 6"), "the validation"),
    "dated.jinja": (replaced("{{ m.role }} ", "{{ m.role }}  "), "the chat template"),
    "config.json": (replaced("1e-05", "2e-05"), "the model's config.json"), "model.safetensors": (last_element, "the model's weights"),
    "program.json": (one_more_space, "the exported program"), "program.float32.train.json": (one_more_space, "the exported program"),
    "program.constants.safetensors": (one_bit, "the exported program"), "rules.json": (replaced("rows", "whole"), "the rules of --program_tensor_rules"),
    "adapter_config.json": (one_more_space, "the adapters"),
    "adapter_model.safetensors": (one_bit, "the adapters"), "ds.json": (replaced("0.01", "0.02"), "the list of flags")}
READ_BY_NONE = {"generation_config.json", "reference.json", "README.md", "special_tokens_map.json", "asked.jsonl"}  # by rank 0 alone, or for people


def folder_of(name, *parts):
    place = folder / name
    place.mkdir()
    for part in parts:
        if isinstance(part, tuple):
            (place / part[0]).write_text(part[1])
        else:
            shutil.copytree(part, place / part.name) if part.is_dir() else shutil.copy(part, place)
    return place


def named(source, name):
    return name, source.read_text()


made = folder / "made"
result = launch(PROGRAMS["causal"], words({"model_config": "bloom-tiny", "tokenizer": DATA / "tokenizer", "random_rows": 8, "max_seq_length": 16, "max_steps": 1, "output_dir": made}))
check.that(result.code == 0, "a model", result)
(made / "final").rename(made / "model")
result = launch(PROGRAMS["causal"], words({"model": made / "model", "random_rows": 8, "max_seq_length": 16, "max_steps": 1, "lora_r": 2,
                                           "output_dir": made / "adapted"}))
check.that(result.code == 0, "adapters", result)
(made / "adapted/final").rename(made / "adapter")

TOKENIZER, TEXT, SQUAD = DATA / "tokenizer", DATA / "sources/squad.txt", DATA / "squad_sample.json"
JOBS = [
    ("causal", {**SMALL, "train_file": "train.txt", "validation_file": "valid.txt", "packing": "true"},
     folder_of("causal", TOKENIZER, named(TEXT, "train.txt"), named(TEXT, "valid.txt"))),
    ("causal", {"model_config": "bloom-tiny", "train_ids": "train.ids", "validation_ids": "valid.ids", "max_seq_length": 16, "deepspeed": "ds.json"},
     folder_of("ids", ("train.ids", ids(5)), ("valid.ids", ids(50)), ("ds.json", '{"optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}'))),
    ("causal", {"model": "llama", "random_rows": 8, "max_seq_length": 16, "program_tensor_rules": "rules.json"},
     folder_of("program", ROOT / "tests/data/programs/llama", ("rules.json", '{"o_proj": "rows"}'))),
    ("causal", {"model": "model", "adapter": "adapter", "random_rows": 8, "max_seq_length": 16},
     folder_of("adapters", made / "model", made / "adapter")),
    ("squad", {**SMALL, "train_file": "train.json", "validation_file": "valid.json"},
     folder_of("squad", TOKENIZER, named(SQUAD, "train.json"), named(SQUAD, "valid.json"))),
    ("classification", {**SMALL, "train_file": "train.csv", "validation_file": "valid.csv"},
     folder_of("classification", TOKENIZER, named(DATA / "classification_train.csv", "train.csv"),
               named(DATA / "classification_heldout.csv", "valid.csv"))),
    ("chat", {**SMALL, "train_file": "train.jsonl", "validation_file": "valid.jsonl", "chat_template": "dated.jinja"},
     folder_of("chat", TOKENIZER, ("train.jsonl", chats(24)), ("valid.jsonl", chats(12)), ("dated.jinja", DATED))),
    ("generate", {"model": "llama", "prompts": "asked.jsonl", "max_new_tokens": 2, "program_tensor_rules": "rules.json"},
     folder_of("generate_program", ("asked.jsonl", '{"input_ids": [5, 6]}\n' * 2), ("rules.json", '{"o_proj": "rows"}'), ROOT / "tests/data/programs/llama")),
    ("generate", {"model": "model", "adapter": "adapter", "tokenizer": "tokenizer", "chat": "true", "chat_template": "dated.jinja",
                  "prompts": "asked.jsonl", "max_new_tokens": 2},
     folder_of("generate", made / "model", made / "adapter", TOKENIZER, ("asked.jsonl", chats(2)), ("dated.jinja", DATED)))]


def other(job, path):
    """The job with this file changed for rank 1."""
    program, flags, place = job
    changed = pathlib.Path(tempfile.mkdtemp(dir=folder, prefix="rank1_")) / "place"
    shutil.copytree(place, changed)
    CHANGES[path.name][0](changed / path)
    return ranks_of(program, {**flags, **(DRY if program != "generate" else {})}, (place, changed), ({}, {}))


# A file of one name is tried once with the programs that train, and once with the one that writes.
cases = {(job[0] == "generate", path.name): (job, path.relative_to(job[2]))
         for job in JOBS for path in sorted(job[2].rglob("*")) if path.is_file() and path.name not in READ_BY_NONE}.values()
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    found = list(pool.map(lambda case: other(*case), cases))
for (job, path), result in zip(cases, found):
    what = CHANGES[path.name][1]
    errors = [line for line in result.text.splitlines() if line.startswith("E ")]
    check.that(result.code == 2 and errors and f"{what}" in errors[0] and "not the same on all ranks" in errors[0] and "on rank 1" in errors[0],
               f"{job[0]}: another {path} on rank 1", result)

# No flag that names what a run reads is left out.
ELSEWHERE = {"cache_dir", "output_dir", "output", "resume_from_checkpoint", "checkpoint", "config", "perplexity",  # no input, the flags', or read by rank 0
             "shuffle", "generation", "deepspeed_defaults", "lr_scheduler_kwargs", "text_column", "show_rows"}  # speak of files
read = {name for _, flags, _ in JOBS for name in flags}
for program in PROGRAMS.values():
    for entry in re.split(r"\n(?=  --)", launch(program, ["--help", "all"]).text):
        name = re.match(r"  --(\w+)", entry)
        names_file = name and re.search(r"\b(directory|FILE|DIR|JSON|CSV|\w*file)\b", " ".join(entry.split()))
        check.that(not names_file or name[1] in read | ELSEWHERE, f"{program}: no case above reads what --{name and name[1]} names: {entry}")

# --- one date for all ranks, rank 0's in UTC, and for the run that goes on
program, flags, place = next(job for job in JOBS if job[0] == "chat")
train = {**flags, "max_steps": 4, "learning_rate": 1e-2, "save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 2}
day = lambda shift: str((datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=shift)).date())
clock = lambda shift: {"LD_PRELOAD": str(BIN / "shifted_clock.so"), "TESSERA_SHIFT_S": str(86400 * shift)}


def trained(name, *environments, **more):
    """One rank for each environment."""
    out = folder / "runs" / name
    result = ranks_of(program, {**train, "output_dir": out, **more}, [place] * len(environments), environments)
    check.that(result.code == 0, f"{name}: ends well", result)
    return (read_events(check, out)[-1].get("param_hash_final") if result.code == 0 else None), result


def dates(result):
    return set(re.findall(r"the chat template writes the date (\S+);", result.text))


begun = day(0)
today, result = trained("today", {}, {})
check.that(dates(result) <= {begun, day(0)}, f"today's date in UTC is said: {dates(result)}", result)
check.that(trained("zones", {"TZ": "XXX+12"}, {"TZ": "XXX-14"})[0] == today, "time zones change no row")
later, result = trained("later", clock(9), clock(9))
check.that(later != today and dates(result) <= {day(9)}, f"another day's rows are others: {dates(result)}", result)
check.that(trained("midnight", clock(9), clock(10))[0] == later, "all ranks write rank 0's date")
given, result = trained("given", {}, {}, template_date=day(9))
check.that(given == later, "--template_date is the date", result)
alone = trained("alone", clock(9))[0]
shutil.copytree(folder / "runs/alone", folder / "alone")
shutil.rmtree(folder / "runs/alone/checkpoint-4")
resumed, result = trained("alone", {}, resume_from_checkpoint="auto")
check.that(resumed == alone and "begins anew" not in result.text, "a run goes on with its date", result)
shutil.rmtree(folder / "runs/alone/checkpoint-4")
_, result = trained("alone", {}, resume_from_checkpoint="auto", template_date=day(3))
check.that(f"begins anew: the chat template's date {day(9)} -> {day(3)}" in result.text, "another date is other data", result)
cached = [trained(f"cached {name}", clock(shift), cache_dir=folder / "cache")[0] for name, shift in (("first", 0), ("second", 9), ("again", 9))]
check.that(cached[0] != alone and cached[1:] == [alone, alone], f"the cache knows the date: {cached}")


# --- what a run goes on with must be what it began with
def goes_on(name, change, **more):
    """A run that stopped after step 2, whose folder has changed since then."""
    mine = folder / f"goes on {name}"
    shutil.copytree(place, mine)
    shutil.copytree(folder / "alone", mine / "out")
    shutil.rmtree(mine / "out/checkpoint-4")
    change(mine)
    result = ranks_of(program, {**train, "output_dir": "out", "resume_from_checkpoint": "auto", **more}, [mine], [{}])
    check.that(result.code == 0, f"{name}: goes on", result)
    return result.text, read_events(check, mine / "out")[-1].get("param_hash_final")


text, digest = goes_on("as it was", lambda mine: None)
check.that("anew" not in text and "not as in the checkpoint" not in text and digest == alone, f"nothing has changed:\n{text}")
text, _ = goes_on("tokenizer", lambda mine: fewer_merges(mine / "tokenizer/tokenizer.json"))
check.that(re.search("begins anew: the training rows 24 rows, XXH3 .* -> 24 rows", text) and re.search("metrics .* compare: .*the tokenizer", text),
           f"another tokenizer is said:\n{text}")
text, digest = goes_on("validation", lambda mine: replaced(" far ", " fra ")(mine / "valid.jsonl"))
check.that("anew" not in text and re.search("metrics .* compare: the validation rows 12 rows", text) and digest == alone,
           f"other validation rows are said, and training goes on:\n{text}")

shutil.rmtree(folder)
check.finish()
