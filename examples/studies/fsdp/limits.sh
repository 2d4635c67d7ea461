# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2154  # run.sh's size
# What a small machine would have: the largest batch is found where its memory ends. Threads of OpenMP and arenas of malloc would reserve of it.
if [[ $size == cpu_largest_batch ]]; then
  export OMP_NUM_THREADS=1 MALLOC_ARENA_MAX=1
  ulimit -v $((700 << 10))
fi
# LibTorch's allocator gets what a card of 24 GB leaves beside the driver's context.
if [[ $size == gpu_largest_batch ]]; then
  whole=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits)
  whole=${whole%%$'\n'*}  # the first card's
  fraction=$(awk -v all="$whole" 'BEGIN {printf "%.4f", 22800 / all}')
  export PYTORCH_ALLOC_CONF=per_process_memory_fraction:$fraction
fi
