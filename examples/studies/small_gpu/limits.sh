# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2154  # run.sh's size
# LibTorch's allocator gets what a card of 16 GB leaves beside the driver's context.
if [[ $size != cpu* ]]; then
  whole=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits)
  whole=${whole%%$'\n'*}  # the first card's
  fraction=$(awk -v all="$whole" 'BEGIN {printf "%.4f", 14600 / all}')
  export PYTORCH_ALLOC_CONF=per_process_memory_fraction:$fraction
fi
