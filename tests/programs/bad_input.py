# SPDX-License-Identifier: MIT
"""Bad input: one clear message, the documented exit code, nothing written, no hang, on one and on several ranks.

Usage: bad_input.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import json
import pathlib
import shutil
import tempfile

from support import DATA, MPIRUN, ROOT, Checker, launch

USAGE, BAD_DATA = 2, 4
check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_bad_input_"))
out = folder / "out"

SQUAD, CAUSAL, CLASSIFICATION = "tessera-finetune-squad", "tessera-finetune-causal", "tessera-finetune-classification"
CHAT = "tessera-finetune-chat"


def write(name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def write_bytes(name, content):
    path = folder / name
    path.write_bytes(content)
    return str(path)


def flags(base, changes):
    merged = {**base, **changes}
    return [part for key, value in merged.items() if value is not None
            for part in ([f"--{key}"] if value is True else [f"--{key}", str(value)])]


squad = {"model_config": "bloom-tiny", "tokenizer": DATA / "tokenizer", "train_file": DATA / "squad_sample.json",
         "output_dir": out, "max_steps": 2, "per_device_train_batch_size": 2}
text = {**squad, "train_file": DATA / "sources" / "squad.txt"}
labels = {**squad, "train_file": DATA / "classification_train.csv"}
chats = {**squad, "train_file": write("chats.jsonl", '{"prompt": "Hi", "completion": "Ho"}\n'), "chat_template": "chatml"}

rows = {"model_config": "bloom-tiny", "random_rows": 8, "max_seq_length": 16, "output_dir": out, "max_steps": 2}
LORA = ROOT / "tests/parity/huggingface/lora"

sample = json.loads((DATA / "squad_sample.json").read_text())
no_answers = json.loads(json.dumps(sample))
del no_answers["data"][0]["paragraphs"][0]["qas"][0]["answers"]
other_tokenizer = folder / "tokenizer"
shutil.copytree(DATA / "tokenizer", other_tokenizer)
unsupported = json.loads((other_tokenizer / "tokenizer.json").read_text())
unsupported["model"]["type"] = "WordPiece"
(other_tokenizer / "tokenizer.json").write_text(json.dumps(unsupported))
model = folder / "model"
model.mkdir()
(model / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 8}))
shutil.copy(DATA / "tokenizer" / "tokenizer.json", model)
added = json.loads((DATA / "tokenizer" / "tokenizer.json").read_text())
added["added_tokens"].append({**added["added_tokens"][0], "id": 2000, "content": "<|im_end|>"})
longer = folder / "longer"
longer.mkdir()
(longer / "tokenizer.json").write_text(json.dumps(added))
small = write("small.json", json.dumps({"model_type": "bloom", "vocab_size": 2000, "hidden_size": 8, "n_layer": 1, "n_head": 1}))
pointer = folder / "pointer"
pointer.mkdir()
(pointer / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 14500471\n")

# (program, base, changes, exit code, pieces of the one message)
CASES = [
    (SQUAD, squad, {"lerning_rate": "1"}, USAGE, ["--lerning_rate", "--learning_rate"]),
    (SQUAD, squad, {"strategy": "zero9"}, USAGE, ["zero9", "single, ddp, zero1, zero2, zero3"]),
    (SQUAD, squad, {"max_steps": "many"}, USAGE, ["--max_steps", "integer"]),
    (SQUAD, squad, {"pipeline_parallel": 2, "tensor_parallel": 2}, USAGE, ["--pipeline_parallel 2 x --tensor_parallel 2 take 4 ranks", "start "]),
    (SQUAD, squad, {"offload": "optimiser"}, USAGE, ["--offload", "nearest is optimizer"]),
    (SQUAD, squad, {"offload": "activations"}, USAGE, ["--offload activations", "add --gradient_checkpointing"]),
    (SQUAD, squad, {"packing": True}, USAGE, ["--packing", "--max_seq_length"]),
    (SQUAD, squad, {"packing": True, "max_seq_length": 96, "padding_side": "left"}, USAGE, ["--packing", "--padding_side left"]),
    (SQUAD, squad, {"pad_to_multiple_of": 0}, USAGE, ["--pad_to_multiple_of", "at least 1"]),
    (SQUAD, squad, {"packing": True, "max_seq_length": 96, "train_file": None,
                    "train_ids": write("holes.jsonl", '{"input_ids":[1,2,3],"attention_mask":[1,0,1],"labels":[1,2,3]}\n')},
     USAGE, ["attention mask", "leave packing out"]),
    (SQUAD, squad, {"random_rows": 5}, USAGE, ["give one of --train_file, --train_ids and --random_rows"]),
    (SQUAD, squad, {"train_file": None}, USAGE, ["give one of --train_file, --train_ids and --random_rows"]),
    (SQUAD, squad, {"train_file": None, "random_rows": 5, "random_row_length": 100000}, USAGE, ["--random_row_length", "--max_seq_length"]),
    (SQUAD, squad, {"train_file": None, "random_rows": -5}, USAGE, ["--random_rows is -5; it must be at least 0 and at most 2^40"]),
    (SQUAD, squad, {"train_file": None, "random_rows": 1 << 40}, USAGE, ["--random_rows", "epochs repeat them"]),
    (CLASSIFICATION, labels, {"train_file": None, "random_rows": 5}, USAGE, ["--random_rows", "--num_labels"]),
    (CAUSAL, rows, {"max_steps": None, "num_train_epochs": "1e18"}, USAGE, ["--num_train_epochs is 1e+18; it must be at least 0 and at most 1e+09"]),
    (CAUSAL, rows, {"max_steps": "1e3"}, USAGE, ["--max_steps", "an integer, at least -1 and at most 2^40, found '1e3'"]),
    (CAUSAL, rows, {"learning_rate": "nan"}, USAGE, ["--learning_rate", "a number, at least 0 and at most 1e+38, found 'nan'"]),
    (CAUSAL, rows, {"activation_memory": "1e300"}, USAGE, ["--activation_memory", "at most 2^60 bytes, found '1e300'"]),
    (CAUSAL, rows, {"per_device_train_batch_size": 1 << 30, "gradient_accumulation_steps": 1 << 20}, USAGE,
     ["--per_device_train_batch_size", "--gradient_accumulation_steps", "at most 2^40 rows"]),
    (CAUSAL, rows, {"output_dir": f"{folder}/bad\udcff"}, USAGE, ["not valid UTF-8", "names of files"]),
    (CAUSAL, text, {"train_file": f"{folder}/bad\udcff.txt"}, USAGE, ["not valid UTF-8", "names of files"]),
    (SQUAD, squad, {"deepspeed": "ds.json"}, USAGE, ["--deepspeed", "ds.json"]),
    (SQUAD, squad, {"backend": "gloo"}, USAGE, ["gloo", "auto, local, mpi, nccl, tcp"]),
    (SQUAD, squad, {"model_config": "bloom-561m"}, USAGE, ["bloom-561m", "bloom-560m"]),
    (SQUAD, squad, {"tokenizer": None}, USAGE, ["--tokenizer"]),
    (SQUAD, squad, {"output_dir": write("plain_file", "x")}, USAGE, ["plain_file", "directory"]),
    (SQUAD, squad, {"train_slice": "100000:"}, USAGE, ["100000"]),
    (SQUAD, squad, {"config": write("c.json", '{"max_stepz": 1}')}, USAGE, ["max_stepz", "max_steps"]),
    (SQUAD, squad, {"train_file": "no_such_file.json"}, BAD_DATA, ["no_such_file.json"]),
    (SQUAD, squad, {"train_file": write("cut.json", (DATA / "squad_sample.json").read_text()[:5000])}, BAD_DATA,
     ["cut.json", "byte"]),
    (SQUAD, squad, {"train_file": write("keys.json", json.dumps(no_answers))}, BAD_DATA, ["keys.json", "answers"]),
    (SQUAD, squad, {"tokenizer": other_tokenizer}, BAD_DATA, ["tokenizer.json", "WordPiece"]),
    (SQUAD, squad, {"model_config": None, "model": folder / "nowhere"}, BAD_DATA, ["nowhere"]),
    (SQUAD, squad, {"model_config": None, "model": "bigscience/bloom-560m"}, BAD_DATA,
     ["no such directory", "hf download bigscience/bloom-560m"]),
    (SQUAD, squad, {"model_config": None, "tokenizer": None, "model": "bigscience/bloom-560m"}, BAD_DATA,
     ["no such directory", "hf download bigscience/bloom-560m"]),
    (SQUAD, squad, {"tokenizer": pointer}, BAD_DATA, ["tokenizer.json", "git-LFS pointer", "git lfs pull"]),
    (SQUAD, squad, {"gpus": 2}, USAGE, ["--gpus 2", "mpirun -n N"]),
    (SQUAD, squad, {"dataset": "squad"}, USAGE, ["--dataset squad", "--train_file FILE"]),
    (SQUAD, squad, {"save_strategy": "best"}, USAGE, ["--save_strategy best", "--load_best_model_at_end"]),
    (SQUAD, squad, {"load_best_model_at_end": "true", "save_strategy": "epoch"}, USAGE, ["--validation_file"]),
    (SQUAD, squad, {"metric_for_best_model": "accuracy"}, USAGE, ["classification only"]),
    (SQUAD, squad, {"save_strategy": "steps", "save_steps": "0"}, USAGE, ["--save_steps is 0"]),
    (SQUAD, squad, {"save_strategy": "steps", "save_steps": "2.5"}, USAGE, ["--save_steps", "a number of steps", "or between 0 and 1", "'2.5'"]),
    (SQUAD, squad, {"eval_steps": "-0.5"}, USAGE, ["--eval_steps", "or between 0 and 1", "'-0.5'"]),
    (SQUAD, squad, {"load_best_model_at_end": "true", "save_strategy": "steps", "save_steps": "0.4", "eval_steps": "0.2", "max_steps": 21,
                    "validation_file": DATA / "squad_sample.json"}, USAGE, ["21 steps are saved every 9 (--save_steps) and evaluated every 5"]),
    (SQUAD, squad, {"lr_scheduler_type": "cosine_with_min_lr"}, USAGE, ["min_lr_rate"]),
    (SQUAD, squad, {"lr_scheduler_type": "reduce_lr_on_plateau"}, USAGE, ["--validation_file"]),
    (SQUAD, squad, {"model_config": None, "model": model}, BAD_DATA, ["config.json", "bert"]),
    (SQUAD, squad, {"max_seq_length": 4}, BAD_DATA, ["max_seq_length"]),
    (SQUAD, squad, {"train_file": None, "train_ids": write("ids.jsonl", '{"input_ids":[1,2],"labels":[1]}\n')}, BAD_DATA,
     ["ids.jsonl", "line 1"]),
    (CAUSAL, rows, {"random_rows": None, "train_ids": write("untrained.jsonl", '{"input_ids":[1,2],"labels":[1,-100]}\n{"input_ids":[3]}\n')}, BAD_DATA,
     ["untrained.jsonl", "no row has a target"]),
    (CAUSAL, rows, {"validation_ids": write("unmeasured.jsonl", '{"input_ids":[1,2,3],"labels":[-100,-100,-100]}\n')}, BAD_DATA,
     ["unmeasured.jsonl", "no row has a target"]),
    (SQUAD, squad, {"train_file": None, "train_ids": write("big.jsonl", '{"input_ids":[1,999999],"labels":[1,2]}\n')},
     BAD_DATA, ["big.jsonl", "999999"]),
    (CAUSAL, text, {"train_file": write_bytes("latin.txt", "Le café noir".encode("latin-1") * 99)}, BAD_DATA,
     ["latin.txt", "byte 6", "convert the file to UTF-8"]),
    (CAUSAL, text, {"train_file": write("short.txt", "A few words.")}, BAD_DATA, ["short.txt", "--max_seq_length"]),
    (CAUSAL, text, {"train_file": write("text.md", "x")}, USAGE, ["text.md", ".txt or .jsonl"]),
    (CAUSAL, text, {"train_file": write("keys.jsonl", '{"body": "x"}\n')}, USAGE, ["keys.jsonl", "--text_column"]),
    (CAUSAL, text, {"train_file": write("text.csv", "text;label\n")}, USAGE, ["text.csv", "tessera-finetune-classification reads .csv"]),
    (CAUSAL, text, {"train_file": write_bytes("text.jsonl.gz", b"\x1f\x8b\x08\x00")}, USAGE, ["text.jsonl.gz", "gunzip --keep"]),
    (CAUSAL, {**text, "model": write_bytes("model.gguf", b"GGUF\x03"), "model_config": None}, {}, USAGE, ["model.gguf", "GGUF is not read"]),
    (SQUAD, squad, {"train_file": write("lines.jsonl", '{"messages": [1]}\n{"messages": [2]}\n')}, BAD_DATA,
     ["lines.jsonl", "keys are messages", "tessera-finetune-chat trains chats"]),
    (CHAT, chats, {"train_file": write("preference.jsonl", '{"prompt": "a", "chosen": "b", "rejected": "c"}\n')}, BAD_DATA,
     ["preference data (1)", "not trained by tessera"]),
    (CAUSAL, text, {"squad_v2": True}, USAGE, ["--squad_v2"]),
    (CAUSAL, text, {"train_file": write_bytes("latin.jsonl", b'{"text": "caf\xe9"}\n')}, BAD_DATA, ["latin.jsonl:1", "UTF-8"]),
    (CLASSIFICATION, labels, {"train_file": write_bytes("latin.csv", b"label,text\n0,caf\xe9\n")}, BAD_DATA,
     ["latin.csv", "byte 16", "UTF-8"]),
    (CLASSIFICATION, labels, {"num_labels": 2}, BAD_DATA, ["classification_train.csv", "--num_labels"]),
    (CLASSIFICATION, labels, {"label_column": "colour"}, USAGE, ["colour", "text, label"]),
    (CLASSIFICATION, labels, {"train_file": write("quote.csv", 'label,text\n0,"open\n')}, BAD_DATA, ["quote.csv:2"]),
    (CLASSIFICATION, labels, {"train_file": None, "num_labels": 2,
                              "train_ids": write("range.jsonl", '{"input_ids":[1,2],"labels":7}\n')}, BAD_DATA,
     ["range.jsonl", "7"]),
    (CLASSIFICATION, labels, {"train_file": write("empty.csv", "")}, BAD_DATA, ["empty.csv"]),
    (CAUSAL, rows, {"lora_r": -4}, USAGE, ["--lora_r is -4", "at least 0"]),
    (CAUSAL, rows, {"lora_r": 0, "lora_dropout": 0.1}, USAGE, ["--lora_dropout 0.1", "give --lora_r N, at least 1"]),
    (CAUSAL, rows, {"lora_r": 4, "lora_target_modules": "query_key_valu"}, USAGE, ["query_key_valu", "the nearest is query_key_value"]),
    (CAUSAL, rows, {"lora_r": 4, "lora_target_parameters": "experts.down_proj", "lora_dropout": 0.1}, USAGE, ["--lora_dropout", "leave it at 0"]),
    (CAUSAL, rows, {"lora_r": 4, "lora_target_parameters": "experts.down_proj"}, USAGE, ["experts.down_proj", "no tensors of all experts"]),
    (CAUSAL, rows, {"lora_r": 4, "lora_modules_to_save": "word_embeddings"}, USAGE, ["word_embeddings", "tied"]),
    (CAUSAL, rows, {"lora_r": 4, "resize_embeddings": True}, USAGE, ["--resize_embeddings", "adapters do not hold"]),
    (CAUSAL, rows, {"load_in_4bit": "true"}, USAGE, ["--load_in_4bit true", "--dtype bf16 with --lora_r"]),
    (CAUSAL, rows, {"adapter": folder / "nowhere"}, BAD_DATA, ["nowhere", "not a directory"]),
    (CAUSAL, rows, {"adapter": LORA / "llama"}, BAD_DATA, ["another model", "matches nothing"]),
    (CAUSAL, rows, {"adapter": LORA / "bloom"}, BAD_DATA, ["another model", "has shape", "query_key_value"]),
    (CAUSAL, rows, {"adapter": LORA / "bloom_classification_all"}, BAD_DATA, ["SEQ_CLS", "CAUSAL_LM"]),
    (CHAT, chats, {"chat_template": None}, USAGE, ["no chat template", "--chat_template NAME"]),
    (CHAT, chats, {"chat_template": "chatlm"}, USAGE, ["chatlm", "chatml"]),
    (CHAT, chats, {"chat_template": write("open.jinja", "{% for m in messages %}")}, USAGE, ["open.jinja:1"]),
    (CHAT, chats, {"train_file": write("role.jsonl", '{"messages": [{"role": "usr", "content": "x"}]}\n')}, BAD_DATA,
     ["role.jsonl", "unknown role (1)", "more than 5 %"]),
    (CHAT, chats, {"train_file": write("text.jsonl", '{"text": "x"}\n'), "strict_data": True}, BAD_DATA, ["text.jsonl:1", "rename its columns"]),
    (CHAT, chats, {"train_file": write("rows.parquet", "PAR1")}, USAGE, ["rows.parquet", "scripts/parquet_to_jsonl.py"]),
    (CHAT, chats, {"train_on": "user"}, USAGE, ["--train_on", "all, assistant, last"]),
    (CHAT, chats, {"supervise": "all"}, USAGE, ["--supervise"]),
    (CHAT, chats, {"tokenizer": longer, "model_config": small}, USAGE, ["2001 tokens", "2000 rows", "--resize_embeddings"]),
]


def refused(result, code, pieces, what):
    """One error line holds all pieces, no other error line comes with it, and nothing was written."""
    check.that(result.code == code, f"{what}: exit code {code}", result)
    errors = [line for line in result.text.splitlines() if line.startswith(("E ", "error:"))]
    check.that(len(errors) == 1 and all(piece in errors[0] for piece in pieces),
               f"{what}: exactly one error, with {pieces}", result)
    message = errors[0].split(": ", 2)[-1][:60] if errors else "?"
    check.that(sum(message in line for line in result.text.splitlines()) == 1, f"{what}: said once", result)
    check.that("Traceback" not in result.text and "Exception raised from" not in result.text,
               f"{what}: no stack trace", result)
    check.that(not out.exists(), f"{what}: nothing is written", result)
    if out.exists():
        shutil.rmtree(out)


for number, (program, base, changes, code, pieces) in enumerate(CASES):
    what = f"{program} {changes}"
    refused(launch(program, flags(base, changes)), code, pieces, what)
    if number % 3 == 0:
        refused(launch(program, flags(base, {**changes, "ranks": 3})), code, pieces, what + " on 3 threads")
    if MPIRUN and number % 3 == 1:
        refused(launch(program, flags(base, changes), mpi_ranks=3), code, pieces, what + " on 3 processes")

# What only several ranks can get wrong.
refused(launch(SQUAD, flags(squad, {"strategy": "single", "ranks": 2})), USAGE, ["single"], "single on 2 ranks")
for changes, pieces in [
    ({"ranks": 6, "pipeline_parallel": 4}, ["--pipeline_parallel 4 x --tensor_parallel 1 take 4 ranks", "the job has 6; start 8"]),
    ({"ranks": 5, "pipeline_parallel": 5}, ["5", "4 blocks"]),
    ({"ranks": 3, "tensor_parallel": 3}, ["3 tensor-parallel ranks", "2, 4"]),
    ({"ranks": 2, "sequence_parallel": True}, ["sequence_parallel", "tensor axis"]),
    ({"ranks": 2, "offload": "optimizer"}, ["ddp", "zero1"]),
    ({"ranks": 2, "strategy": "zero2", "offload": "optimizer+params"}, ["zero2", "zero3"]),
    ({"ranks": 2, "strategy": "zero1", "shard_ranks": 2}, ["shard_ranks", "fsdp"]),
    ({"ranks": 2, "pipeline_parallel": 2, "pipeline_chunks": 2}, ["chunks", "1f1b"]),
    ({"ranks": 2, "pipeline_parallel": 2, "pipeline_schedule": "zbh1", "pipeline_vocabulary": "shared"}, ["zbh1 has no order", "gpipe or 1f1b"]),
    ({"ranks": 2, "pipeline_vocabulary": "shared"}, ["--pipeline_vocabulary shared", "pipeline axis"]),
    ({"ranks": 4, "pipeline_parallel": 2, "tensor_parallel": 2, "pipeline_vocabulary": "shared"}, ["shared_vocabulary", "tensor axis"]),
]:
    refused(launch(SQUAD, flags(squad, {"strategy": "ddp", **changes})), USAGE, pieces, f"{changes}")
refused(launch(SQUAD, flags(squad, {"ranks": 2, "backend": "mpi"})), USAGE, ["--ranks"], "threads over MPI")
if MPIRUN:
    parallel = {**squad, "strategy": "ddp"}
    different = [flags(parallel, {}), flags(parallel, {"learning_rate": "1e-3"})]
    refused(launch(SQUAD, different, mpi_ranks=2), USAGE, ["list of flags", "rank"], "different arguments")
    other_data = json.loads(json.dumps(sample))
    other_data["data"][0]["title"] = "another title"
    different = [flags(parallel, {}), flags(parallel, {"train_file": write("squad_sample.json", json.dumps(other_data))})]
    refused(launch(SQUAD, different, mpi_ranks=2), USAGE, ["rank"], "different data under one name")
    one_bad = [flags(parallel, {}), flags(parallel, {"train_file": "missing.json"})]
    refused(launch(SQUAD, one_bad, mpi_ranks=2), BAD_DATA, ["missing.json", "rank 1"], "a file missing on one rank")
    refused(launch(SQUAD, flags(parallel, {"ranks": 2}), mpi_ranks=2), USAGE, ["--ranks 2"], "threads inside mpirun")

# tessera-compare checks everything before it starts a child or writes.
compare = {**squad, "rank_counts": "2"}
del compare["max_steps"]
for changes, code, pieces in [
    ({"strategies": "ddp,zero7"}, USAGE, ["zero7"]),
    ({"rank_counts": "2,x"}, USAGE, ["'x'"]),
    ({"global_batch_size": 7}, USAGE, ["global batch of 7"]),
    ({"ranks": 2}, USAGE, ["--ranks"]),
    ({"lerning_rate": 1}, USAGE, ["--learning_rate"]),
    ({"train_file": "no_such_file.json"}, BAD_DATA, ["no_such_file.json"]),
]:
    refused(launch("tessera-compare", flags(compare, changes)), code, pieces, f"tessera-compare {changes}")

shutil.rmtree(folder)
check.finish()
