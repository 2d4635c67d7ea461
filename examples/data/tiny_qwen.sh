#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A model directory with the files of Qwen2.5-0.5B-Instruct, 1 MB: commands can be tried without a download.
#   examples/data/tiny_qwen.sh DIR
# It is trained on the samples of examples/data for some 15 s, so it knows 24 answers. Needs the programs on PATH, and python3.
set -euo pipefail
target=${1:?usage: examples/data/tiny_qwen.sh DIR}
data=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ ! -e $target ]] || { echo "tiny_qwen: $target is there already" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tokenizer"
# The sample tokenizer, with Qwen's tokens of turns and a template as Qwen2.5 writes chats without tools.
python3 - "$data/tokenizer" "$work/tokenizer" <<'END'
import csv, json, pathlib, sys
source, target = map(pathlib.Path, sys.argv[1:])
tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
first = 1 + max(tokenizer["model"]["vocab"].values())
for at, name in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>")):
    tokenizer["added_tokens"].append({"id": first + at, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
                                      "normalized": False, "special": True})
(target / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
config = json.loads((source / "tokenizer_config.json").read_text())
config.update(bos_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=(
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"))
(target / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
# Chats about training, and sentences about other things, for more words.
with open(source.parent / "chats_train.jsonl", encoding="utf-8") as file:
    chats = [json.loads(line)["messages"] for line in file] * 4
with open(source.parent / "classification_train.csv", encoding="utf-8", newline="") as file:
    for row in list(csv.DictReader(file))[::2]:
        chats.append([{"role": "user", "content": f"Write about {row['label']}."}, {"role": "assistant", "content": row["text"]}])
with open(target / "chats.jsonl", "w", encoding="utf-8") as file:
    file.writelines(json.dumps({"messages": chat}) + "\n" for chat in chats)
END
OMP_NUM_THREADS=1 tessera-finetune-chat --model_config qwen2-tiny --tokenizer "$work/tokenizer" --train_file "$work/tokenizer/chats.jsonl" \
  --max_seq_length 128 --ranks 2 --per_device_train_batch_size 4 --num_train_epochs 7 --learning_rate 1e-2 \
  --lr_scheduler_type cosine --warmup_steps 0.1 --output_dir "$work/run" >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }
mkdir -p "$(dirname "$target")"
mv "$work/run/final" "$target"
echo "$target: $(ls "$target" | tr '\n' ' ')"
