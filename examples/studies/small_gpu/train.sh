#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A training run in slices of its data, each a program of its own that goes on from the checkpoint of the one before:
# what one does whose GPU is his for an hour at a time.   train.sh SIZE OUTPUT_DIR
set -euo pipefail
size=$1 output=$2
case $size in
  cpu*) model=(--model_config llama-mini --max_seq_length 96 --learning_rate 2e-3) ;;
  *) model=(--model_config llama-3.2-1b --max_seq_length 512 --dtype bf16 --learning_rate 2e-5) ;;
esac
for slice in 0:56 56:112 112:168; do
  [[ ! -e $output.$slice.done ]] || continue
  last=$([[ $slice == 112:168 ]] && echo true || echo false)
  echo "slice $slice"
  tessera-finetune-squad "${model[@]}" --tokenizer examples/data/tokenizer --strategy zero2 --offload optimizer \
    --train_file examples/data/squad_sample.json --train_slice "$slice" \
    --validation_file examples/data/squad_sample.json --validation_slice 168:192 \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --num_train_epochs 1 --lr_scheduler_type constant \
    --save_strategy epoch --save_total_limit 1 --save_final "$last" --resume_from_checkpoint auto \
    --output_dir "$output" >>"$output.log" 2>&1 || { tail -3 "$output.log" >&2; exit 1; }
  touch "$output.$slice.done"
done
