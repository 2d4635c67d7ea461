#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One study: its rows through tessera-compare, then its tables and plots.
#   examples/studies/run.sh STUDY SIZE [OUTPUT_DIR] [more flags of tessera-compare]
# STUDY: a folder beside this script; SIZE: one of its .txt files (cpu; gpu and others on GPUs). Called again with the
# same OUTPUT_DIR it goes on where it was interrupted. TESSERA_BIN: the folder of the programs, else a build's, else PATH.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
study=${1:-} size=${2:-}
rows=$here/$study/$size.txt
if [[ -z $study || -z $size || ! -f $rows ]]; then
  echo "usage: run.sh STUDY SIZE [OUTPUT_DIR] [flags]; there is no $study $size, but:" \
    "$(cd "$here" && printf '%s\n' */*.txt | sed 's#/# #; s#\.txt$##' | paste -sd, | sed 's/,/, /g')" >&2
  exit 2
fi
output=${3:-runs/studies/$study-$size}
shift $(($# < 3 ? $# : 3))
mkdir -p "$output"
output=$(cd "$output" && pwd)
cd "$here/../.."
bin=${TESSERA_BIN:-$(ls -dt build/*/bin 2>/dev/null | head -1)}
export PATH=${bin:+$(cd "$bin" && pwd):}$PATH

case $size in
  cpu*)
    export CUDA_VISIBLE_DEVICES=''
    given=(--config examples/studies/cpu.json --launcher threads)
    ;;
  *)
    given=(--task causal --config examples/studies/gpu.json --random_rows 3840)  # an epoch of whole steps
    [[ $size != nodes* ]] || given+=(--launcher srun)
    ;;
esac
# shellcheck source=/dev/null
[[ ! -f $here/$study/limits.sh ]] || source "$here/$study/limits.sh"
status=0
tessera-compare "${given[@]}" --rows "$rows" --output_dir "$output/rows" "$@" || status=$?
[[ $status == 0 || -f $output/rows/compare.json ]] || exit $status
if [[ -f $here/$study/train.sh ]]; then
  "$here/$study/train.sh" "$size" "$output/train" || status=$?
fi
runs=("$output/rows")
[[ ! -d $output/train ]] || runs+=("$output/train")
tessera-report "${runs[@]}" --output_dir "$output/report"
exit $status
