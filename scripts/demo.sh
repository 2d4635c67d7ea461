#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The main job on real input: a small BLOOM fine-tuned on the SQuAD-format sample, as one process and under every
# strategy and combination of examples/compare/demo_rows.txt on 1 to 8 ranks, with the proof that all computed the same
# thing; GPT-2 and Llama on two of them; and a strategy from outside the library. Fails when a verdict does.
# Arguments win over examples/compare/demo.json, for example: scripts/demo.sh --max_steps 50
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
source .deps/env.sh
cmake --preset "$TESSERA_PRESET" -DTESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT" >.deps/configure.log ||
  { cat .deps/configure.log; exit 1; }
cmake --build --preset "$TESSERA_PRESET" -j "$TESSERA_JOBS" --target tessera-compare tessera-finetune-squad \
  custom_strategy

output=runs/demo-$(date +%Y%m%d-%H%M%S)
bin=build/$TESSERA_PRESET/bin
compare() {  # folder, more arguments
  local folder=$1
  shift
  "$bin/tessera-compare" --output_dir "$output/$folder" --global_batch_size 8 --config examples/compare/demo.json "$@"
}
status=0
echo "== CPU: ranks are threads"
CUDA_VISIBLE_DEVICES='' compare cpu --rows examples/compare/demo_rows.txt --launcher threads "$@" || status=$?
for model in gpt2-mini llama-mini; do
  echo "== CPU: $model"
  CUDA_VISIBLE_DEVICES='' compare "$model" --rows examples/compare/demo_models.txt --launcher threads "$@" \
    --model_config "$model" || status=$?
done
echo "== CPU: ranks are processes of mpirun"
CUDA_VISIBLE_DEVICES='' compare mpi --strategies zero2,fsdp --rank_counts 2 "$@" || status=$?
echo "== Local SGD, a strategy from outside the library (examples/custom_strategy)"
CUDA_VISIBLE_DEVICES='' "$bin/custom_strategy" || status=$?
if [[ $TESSERA_PRESET == cuda ]]; then
  gpus=$(nvidia-smi -L | wc -l)
  counts=1
  ((gpus < 2)) || counts=2
  ((gpus < 4)) || counts=2,4
  echo "== GPU ranks, NCCL"
  compare gpu --strategies ddp,zero1,zero2,zero3,fsdp --rank_counts "$counts" "$@" || status=$?
fi
echo "everything is in $output; the trained model of each run is in <run>/final"
exit $status
