#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Fuzzes the readers one after the other; unbounded time or memory is a finding too.
#   tests/fuzz/readers/run.sh BUILD SECONDS [READER...]
# BUILD: folder of the `fuzz` preset. Inputs that reach new code are kept in BUILD/grown/READER and started from the next time; what
# fails is BUILD/found/READER-*, and belongs into the corpus when it is mended. The status is 1 when anything failed.
set -euo pipefail
build=$(realpath "$1") seconds=$2
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")"
readers=("$@")
((${#readers[@]})) || readers=($(cd corpus && echo *))
[[ ! -w /dev/shm ]] || export TMPDIR=/dev/shm
export ASAN_OPTIONS=detect_leaks=1 OMP_NUM_THREADS=1
mkdir -p "$build/found"
failed=()
for reader in "${readers[@]}"; do
  mkdir -p "$build/grown/$reader"
  log=$build/found/$reader.log
  if "$build/bin/fuzz_$reader" -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=2048 -dict="$reader.dict" \
    -print_final_stats=1 -artifact_prefix="$build/found/$reader-" "$build/grown/$reader" "corpus/$reader" >"$log" 2>&1; then
    said=$(sed -n 's/.*DONE *//p' "$log")
  else
    failed+=("$reader")
    said="FAILED: $(grep -m1 -E 'reader_fuzz:|runtime error|SUMMARY' "$log" || true)"
  fi
  echo "$reader: $(sed -n 's/stat::number_of_executed_units: *//p' "$log") inputs, $said"
done
echo "${#failed[@]} of ${#readers[@]} readers failed in $seconds s each${failed[*]:+: ${failed[*]}}"
((${#failed[@]} == 0))
