#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Plants defects of tests/mutants one at a time in a tree of its own and lets fuzz_layouts look for each with a fresh seed.
#   tests/fuzz/replant.sh [--keep-looking SECONDS] NAME...
# Prints a row of tests/mutants/RESULTS.md for each: seconds until it was found, cases that held before, the shrunk case's blocks and ranks, and
# the case. SECONDS (default 600) is how long it may take; the exit status is 1 unless all were found.
#   TESSERA_TORCH_ROOT  LibTorch; default: the one of scripts/setup.sh   TESSERA_JOBS  parallel compilations
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
[[ ! -e .deps/env.sh || -n ${TESSERA_TORCH_ROOT:-} ]] || source .deps/env.sh
work=$root/build/replant tree=$root/build/replant/tree build=$root/build/replant/tree/build/release seconds=600
jobs=${TESSERA_JOBS:-$(env -u OMP_NUM_THREADS nproc)}
export OMP_NUM_THREADS=1
if [[ ${1:-} == --keep-looking ]]; then seconds=$2; shift 2; fi
(($#)) || { sed -n '3,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }

mkdir -p "$work"
commit=$(git rev-parse HEAD)
git worktree prune
[[ -e $tree/.git ]] || git worktree add --quiet --force --detach "$tree" "$commit"
restore() { git -C "$tree" checkout --quiet --force "$@" . && git -C "$tree" clean -fdq; }
git -C "$tree" checkout --quiet --force --detach "$commit"
(cd "$tree" && cmake --preset release ${TESSERA_TORCH_ROOT:+-DTESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT"}) \
  >"$work/configure.log" 2>&1 || { tail -20 "$work/configure.log"; exit 1; }

missed=0
for name in "$@"; do
  log=$work/$name.log
  restore
  git -C "$tree" apply --whitespace=nowarn --recount -C1 "$root/tests/mutants/$name.patch" 2>"$log" ||
    { echo "$name: does not apply"; missed=1; continue; }
  cmake --build "$build" -j "$jobs" --target fuzz_layouts >"$log" 2>&1 || { echo "$name: does not build, see $log"; missed=1; continue; }
  "$build/bin/fuzz_layouts" --seed "$(date +%s)" --seconds "$seconds" --failures 1 >"$log" 2>&1 || true
  found=$(sed -n 's/^case .* failed after \([0-9]*\) s, \([0-9]*\) cases held: .*/\1 | \2/p' "$log" | head -1)
  small=$(sed -n 's/^shrunk after [0-9]* s to \([0-9]*\) blocks on \([0-9]*\) ranks: .*/\1 | \2/p' "$log" | head -1)
  line=$(sed -n "/^shrunk/,\$s/^  fuzz_layouts --case '\(.*\)'/\1/p" "$log" | head -1)
  [[ -n $found ]] || missed=1
  echo "| \`$name\` | ${found:-not found in $seconds | } | ${small:- | } | \`${line:-}\` |"
done
restore
echo "at ${commit:0:10}"
exit $missed
