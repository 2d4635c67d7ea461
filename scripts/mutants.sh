#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Plants the defects of tests/mutants one at a time in a tree of their own and runs the test that must find each.
#   scripts/mutants.sh [--list] [--check] [--restart] [--table] [PATTERN...]
# PATTERN: a glob over file names without .patch (core-*); no pattern: all of them. Results are kept in build/mutants/results by commit
# and patch, so a second call goes on where the first ended.
#   --check     only say which patches do not apply to this commit     --restart  forget the results of the chosen ones
#   --table     only write the results into tests/mutants/RESULTS.md           --list     only name the chosen ones
# A patch begins with "Group:", "Title:", "Promise:" (which the defect breaks), "Test:" (a ctest entry), and perhaps "Targets:" (default:
# the test's program) and "Limit:" (seconds for the test, default 120). Killed means: the test passes without the defect and fails with
# it; what does not compile, or changes nothing that the test sees, is not killed. The exit status is 1 unless all were killed.
#   TESSERA_TORCH_ROOT  LibTorch; default: the one of scripts/setup.sh   TESSERA_JOBS  parallel compilations
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
[[ ! -e .deps/env.sh || -n ${TESSERA_TORCH_ROOT:-} ]] || source .deps/env.sh
# The build folder lies where a preset has it, so that ccache finds what other trees compiled.
work=$root/build/mutants tree=$root/build/mutants/tree build=$root/build/mutants/tree/build/release results=$root/build/mutants/results
jobs=${TESSERA_JOBS:-$(env -u OMP_NUM_THREADS nproc)}
mkdir -p "$results" "$work/logs"
export OMP_NUM_THREADS=1

list='' check='' restart='' table='' patterns=()
for argument in "$@"; do
  case $argument in
    --list | --check | --restart | --table) declare "${argument#--}=1" ;;
    -*) sed -n '3,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
    *) patterns+=("$argument") ;;
  esac
done
((${#patterns[@]})) || patterns=('*')

field() { sed -n "/^diff --git/q; s/^$2: *//p" "tests/mutants/$1.patch" | head -1; }
chosen() {
  local file name pattern
  for file in tests/mutants/*.patch; do
    name=$(basename "$file" .patch)
    for pattern in "${patterns[@]}"; do
      # shellcheck disable=SC2053
      if [[ $name == $pattern ]]; then echo "$name"; break; fi
    done
  done
}
names=$(chosen)
[[ -n $names ]] || { echo "mutants: no patch in tests/mutants is called ${patterns[*]}" >&2; exit 2; }
if [[ -n $list ]]; then echo "$names"; exit; fi
if [[ -n $table ]]; then exec python3 scripts/mutants_table.py tests/mutants "$results" tests/mutants/RESULTS.md; fi

prepare_tree() {
  commit=$(git rev-parse HEAD)
  git diff --quiet HEAD || echo "mutants: uncommitted changes are not tested; commit is ${commit:0:10}"
  git worktree prune
  [[ -e $tree/.git ]] || git worktree add --quiet --force --detach "$tree" "$commit"
  git -C "$tree" checkout --quiet --force --detach "$commit"
  git -C "$tree" clean -fdq
}
apply() { # name: into the tree; a little drift of the context is allowed
  git -C "$tree" apply --whitespace=nowarn "$root/tests/mutants/$1.patch" 2>/dev/null ||
    git -C "$tree" apply --whitespace=nowarn --recount -C1 "$root/tests/mutants/$1.patch" 2>/dev/null
}
restore() { git -C "$tree" checkout --quiet --force . && git -C "$tree" clean -fdq; }
configured=''
configure() {  # once a call: the presets of another commit may say other things
  [[ -z $configured ]] || return 0
  configured=1
  (cd "$tree" && cmake --preset release -DTESSERA_UNITY=OFF ${TESSERA_TORCH_ROOT:+-DTESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT"}) \
    >"$work/logs/configure.log" 2>&1 ||
    { tail -20 "$work/logs/configure.log"; exit 1; }
}
# shellcheck disable=SC2086
compile() { cmake --build "$build" -j "$jobs" --target $1 >"$2" 2>&1; }
run_test() { # ctest entry, seconds, log: a Catch2 case runs alone, and ends with the first failed assertion
  local program=${1%%: *} case=${1#*: }
  if [[ $1 == *": "* && -x $build/bin/$program ]]; then
    case=$(sed 's/[][,\\]/\\&/g' <<<"$case")
    local strict  # the switch with which this Catch2 fails when the case is not there
    strict=$(find "$build/tests" -name "${program}_cases.cmake" -exec grep -ho -m1 -e '--warn [A-Za-z]*' {} +)
    # shellcheck disable=SC2086
    (cd "$build" && timeout -k 5 "$2" "$build/bin/$program" "$case" $strict --abort) >"$3" 2>&1
  else
    (cd "$build" && ctest --no-tests=error --output-on-failure --timeout "$2" \
      -R "^$(sed 's/[][()*+?.^$|\\]/\\&/g' <<<"$1")\$") >"$3" 2>&1
  fi
}
record() { # name, result, seconds, what was seen
  printf '%s\t%s\t%s\t%s\t%s\n' "$commit" "$(sha1sum <"tests/mutants/$1.patch" | cut -c1-12)" "$2" "$3" "$4" >"$results/$1"
}
known() { # name: a result of this commit and patch
  [[ -e $results/$1 && $(cut -f1,2 "$results/$1") == "$commit	$(sha1sum <"tests/mutants/$1.patch" | cut -c1-12)" ]]
}
passes_without() { # ctest entry, targets, seconds, log: asked once a commit
  local stamp log=$4
  stamp=$results/.good-$(sha1sum <<<"$commit $1" | cut -c1-16)
  [[ -e $stamp ]] && return
  compile "$2" "$log" && run_test "$1" "$3" "$log" && touch "$stamp"
}
first_difference() { # what a log says first: Catch2's expansion, the last line of an exception's message, or a checker's FAILED
  awk 'found && /^ *$/ { exit }
       found { line = $0; if (!whole) exit }
       /FAILED: .+[^ ]/ { sub(/.*FAILED: */, ""); line = $0; exit }
       /with expansion:|unexpected exception|explicitly with message/ { found = 1; whole = /exception/ }
       END { gsub(/^ +/, "", line); print line }' "$1" | cut -c1-160 | tr '\t' ' '
}

try() { # name: plants it, builds, runs, restores; sets result and seen
  local test targets limit log=$work/logs/$1.log status=0
  test=$(field "$1" Test) targets=$(field "$1" Targets) limit=$(field "$1" Limit)
  limit=${limit:-120} targets=${targets:-${test%%: *}}
  seen=''
  if ! passes_without "$test" "$targets" "$limit" "$log"; then
    result='no verdict' seen="\"$test\" does not pass without the defect, see build/mutants/logs/$1.log"
  elif ! apply "$1"; then
    result='does not apply'
  elif ! compile "$targets" "$log"; then
    result='does not build' seen=$(grep -m1 -E 'error' "$log" | cut -c1-160 || true)
  else
    run_test "$test" "$limit" "$log" || status=$?
    case $status in
      0) result=survived ;;
      124 | 137) result=killed seen="hangs for $limit s" ;;
      *) result=killed seen=$(first_difference "$log" || true) ;;
    esac
  fi
  restore
}

prepare_tree
killed=0 total=0 bad=()
for name in $names; do
  ((total += 1))
  if [[ -n $check ]]; then
    if apply "$name"; then ((killed += 1)); else echo "does not apply  $name"; bad+=("$name"); fi
    restore
    continue
  fi
  [[ -z $restart ]] || rm -f "$results/$name"
  begin=$SECONDS
  if known "$name"; then
    IFS=$'\t' read -r _ _ result _ seen <"$results/$name"
  else
    configure
    try "$name"
    record "$name" "$result" $((SECONDS - begin)) "$seen"
  fi
  printf '%-14s %s (%d s)%s\n' "$result" "$name" $((SECONDS - begin)) "${seen:+: $seen}"
  if [[ $result == killed ]]; then ((killed += 1)); else bad+=("$name"); fi
done
verb=killed
[[ -z $check ]] || verb='patches apply'
echo "$killed of $total $verb at ${commit:0:10}${bad[*]:+; not: ${bad[*]}}"
((killed == total))
