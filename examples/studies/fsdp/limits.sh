# shellcheck shell=bash disable=SC2154  # run.sh's size
# What a small machine would have: the largest batch is found where its memory ends. Threads of OpenMP would reserve of it.
if [[ $size == cpu_largest_batch ]]; then
  export OMP_NUM_THREADS=1
  ulimit -v $((700 << 10))
fi
