#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# clang-tidy 14 with .clang-tidy on the C++ files that changed; a warning is an error.
#   scripts/tidy.sh [BASE]     changed since BASE (default: where this branch left main), with what is not committed
#   scripts/tidy.sh --all      every file; one that passed at this commit is not looked at again
# A header is seen through the source of its name, else through one that includes it. Configures build/tidy, and builds nothing.
# The status is 77 where there is no clang-tidy 14 (Debian, Ubuntu: apt-get install clang-tidy-14), 1 after a warning.
#   TESSERA_TORCH_ROOT  LibTorch; default: the one of scripts/setup.sh   TESSERA_JOBS  files at once
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ ${1:-} != -* || $1 == --all ]] || { sed -n '3,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }
tidy=$(command -v clang-tidy-14 || command -v clang-tidy || true)
[[ -n $tidy && $("$tidy" --version) == *"version 14."* ]] || { echo "tidy: there is no clang-tidy 14 on this host: apt-get install clang-tidy-14"; exit 77; }
[[ ! -e .deps/env.sh || -n ${TESSERA_TORCH_ROOT:-} ]] || source .deps/env.sh
build=$PWD/build/tidy
mkdir -p "$build/logs"
# Each source alone and without a precompiled header, which clang cannot read.
cmake --preset release -B "$build" -DTESSERA_UNITY=OFF -DTESSERA_PCH=OFF ${TESSERA_TORCH_ROOT:+-DTESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT"} \
  >"$build/configure.log" 2>&1 || { tail -20 "$build/configure.log"; exit 1; }
sed -n "s|^ *\"file\": \"$PWD/\(.*\.cpp\)\".*|\1|p" "$build/compile_commands.json" | sort -u >"$build/sources"

options=() stamp=''
if [[ ${1:-} == --all ]]; then
  stamp=$build/passed.$(git rev-parse HEAD)
  touch "$stamp"
  git diff --quiet HEAD || { echo "tidy: there are uncommitted changes, so nothing is kept of this call"; : >"$stamp"; }
  files=$(comm -23 "$build/sources" <(sort "$stamp"))
else
  base=${1:-$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main)}
  changed=$(git diff --name-only --diff-filter=d "$base" -- '*.cpp' '*.h')
  # Only what is said about the changed files.
  options=(--line-filter="[$(sed 's/.*/{"name":"&"}/' <<<"$changed" | paste -sd,)]")
  files=$(for file in $changed; do
    [[ $file != *.h ]] || { stem=${file%.h}; file=$(grep -m1 -E "(^|/)${stem##*/}\.cpp$" "$build/sources" ||
      xargs -a "$build/sources" grep -l -F "\"${file#include/}\"" | head -1 || true); }
    echo "$file"
  done | sort -u | comm -12 - "$build/sources")
fi
[[ -n $files ]] || { echo "tidy: no file to look at"; exit 0; }
look() {  # file: the warnings, when there is one
  local log=$build/logs/${1//\//_}.log
  if "$tidy" -p "$build" --quiet --warnings-as-errors='*' "${@:2}" "$1" >"$log" 2>/dev/null; then
    [[ -z $stamp ]] || echo "$1" >>"$stamp"
  else
    cat "$log"
    return 1
  fi
}
export -f look
export build tidy stamp
status=0
xargs -P "${TESSERA_JOBS:-$(nproc)}" -I{} bash -c 'look "$@"' look {} "${options[@]}" <<<"$files" || status=1
echo "tidy: $(wc -l <<<"$files") files $( ((status)) && echo 'with warnings' || echo 'without a warning')"
exit $status
