#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The rows of docs/results/performance.md on this host, in parts of ten minutes at most. Prints a table; what each row said
# is kept in OUT_DIR/PART.txt.
#   benchmarks/machine.sh [--list] [--dry-run] PART...
# PART: one, of which one_GROUP is a part (one GPU), or two, of which two_GROUP is one (two GPUs of this host). --list names
# them; --dry-run prints the commands.
#   TESSERA_BIN  folder of the programs, else a build's, else PATH     OUT_DIR  default runs/machine
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
parts=(one_rates one_accumulated one_profile one_offload one_rows one_generation one_rivals
  two_data two_small two_pipelines two_tensor two_large two_rivals)

list='' dry='' chosen=()
for argument in "$@"; do
  case $argument in
    --list) list=1 ;;
    --dry-run) dry=1 ;;
    -*) sed -n '3,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
    *)
      found=''
      for part in "${parts[@]}"; do
        if [[ $part == "$argument" || $part == "${argument}_"* ]]; then chosen+=("$part") found=1; fi
      done
      [[ -n $found ]] || { echo "machine: no part '$argument'; there are: ${parts[*]}" >&2; exit 2; }
      ;;
  esac
done
if [[ -n $list ]]; then printf '%s\n' "${parts[@]}"; exit; fi
((${#chosen[@]})) || { sed -n '3,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }

bin=${TESSERA_BIN:-$(ls -dt build/*/bin 2>/dev/null | head -1)}
[[ -z $bin ]] || export PATH=$(cd "$bin" && pwd):$PATH
out=${OUT_DIR:-runs/machine}
mkdir -p "$out"

# command...: its output into the part's file; prints one line of the table, or that it failed
run() {
  if [[ -n $dry ]]; then echo "$*"; return; fi
  { echo "\$ $*"; "$@" 2>&1 || echo "exit status $?"; } | tee -a "$out/$part.txt" >"$out/last.txt"
  grep -h '^TESSERA {"model"' "$out/last.txt" | sed 's/^TESSERA //' | python3 -c '
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    shared = row["world"] / int(row["mesh"].split("x")[1])  # ranks of one data coordinate
    rate = row["mb"] * row["seq"] * row["accum"] / shared / row["step_ms"] * 1e3
    what = "{model} {mb} x {seq}".format(**row) + (" x {}".format(row["accum"]) if row["accum"] > 1 else "")
    print("| {} | {} | {} {} | {:.1f} | {:.1f}k |".format(what, row["mesh"], row["mode"], row["variant"], row["step_ms"], rate / 1e3))
' || true
  if grep -q '^exit status' "$out/last.txt"; then echo "| failed: $* | | | | |"; fi
}
ranks() { local n=$1; shift; run mpirun ${TESSERA_MPIRUN_FLAGS:---bind-to none} -n "$n" "$@"; }
steps=20 dtype=bf16
bench() { # model rows tokens [flags]
  command=(bench_strategies --model_config "$1" --per_device_train_batch_size "$2" --max_seq_length "$3" --dtype "$dtype"
    --max_steps "$steps" --warmup $((steps / 2)) "${@:4}")
}
rows() { bench "$@" --strategy single; run "${command[@]}"; }  # on one GPU
pair() { bench "$@"; ranks 2 "${command[@]}"; }                # on two

one_rates() {
  rows bloom-560m 16 512
  rows bloom-560m 4 512 --sync false
  rows bloom-560m 4 2048
  rows bloom-3b 16 512
  rows llama-3.2-1b 8 512
  rows llama-3.2-1b 4 2048
  rows llama-3.2-1b 1 8192
  local dtype=fp16
  rows gpt2 32 128
}
one_accumulated() {
  rows bloom-560m 16 512 --gradient_accumulation_steps 8
  rows bloom-3b 16 512 --gradient_accumulation_steps 8
  rows llama-3.2-1b 8 512 --gradient_accumulation_steps 8
  rows llama-3.2-1b 1 32768 --gradient_checkpointing
}
one_profile() {
  rows bloom-560m 16 512 --profile
  rows bloom-3b 16 512 --profile
  rows llama-3.2-1b 8 512 --profile
  rows bloom-560m 4 512 --profile
}
one_offload() {
  local step
  for step in host device auto; do
    rows bloom-560m 16 512 --offload optimizer --offload_keep_on_gpu 0 --offload_step "$step"
    rows bloom-3b 16 512 --offload optimizer --offload_keep_on_gpu 0 --offload_step "$step"
  done
  rows bloom-560m 16 512 --offload optimizer --offload_keep_on_gpu 0 --gradient_accumulation_steps 8
  rows bloom-3b 16 512 --offload optimizer --offload_keep_on_gpu 0 --gradient_accumulation_steps 8
  local steps=6
  rows llama-3.1-8b 4 512 --offload optimizer
}
one_rows() {
  rows bloom-560m 16 512 --rows padded
  rows bloom-560m 16 512 --rows packed
  rows bloom-560m 64 512 --rows packed --supervise answer
}
one_generation() { run bench_generation; }
one_rivals() { run examples/studies/run.sh peers gpu "$out/peers"; }
two_data() { pair bloom-560m 16 512 --strategy ddp,zero1,zero2,zero3,fsdp; }
two_small() { pair bloom-560m 4 512 --strategy ddp,zero1,zero2,zero3,fsdp --sync false; }
two_pipelines() {
  local schedule
  local stages=(--strategy ddp --pipeline_parallel 2 --gradient_accumulation_steps 16)
  for schedule in gpipe 1f1b zbh1; do pair bloom-560m 4 512 "${stages[@]}" --pipeline_schedule "$schedule"; done
  pair bloom-560m 4 512 "${stages[@]}" --pipeline_schedule interleaved --pipeline_chunks 2
  pair bloom-560m 4 512 "${stages[@]}" --pipeline_schedule 1f1b --pipeline_vocabulary shared
}
two_tensor() {
  pair bloom-560m 16 512 --strategy ddp --tensor_parallel 2
  pair bloom-3b 16 512 --strategy ddp --tensor_parallel 2
  pair bloom-3b 16 512 --strategy ddp --tensor_parallel 2 --sequence_parallel
}
two_large() {
  local steps=8
  pair bloom-7b1 16 512 --strategy zero3
  pair bloom-7b1 4 512 --strategy ddp --pipeline_parallel 2 --gradient_accumulation_steps 16
}
two_rivals() { run examples/studies/run.sh pipeline gpu "$out/pipeline"; }

[[ -n $dry ]] || printf '| work | mesh | layout | ms a step | tokens/s a GPU |\n|---|---|---|---|---|\n'
for part in "${chosen[@]}"; do
  [[ -n $dry ]] || : >"$out/$part.txt"
  "$part"
done
