#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What takes too long for every change: sanitizers, clang-tidy, planted defects and mutants of changed files, long fuzzing (layouts; readers of files), the parity matrix, the context axis's certificate, foreign readers, slow entries of the suite, clients' builds, real
# launchers, the control channel, kills, lost work, the Python module, the exporter, a program without Python, the wheel, other versions of LibTorch, the pages' commands, a bare system. Writes tests/NIGHTLY.md, newest first.
#   scripts/nightly.sh [--list] [--restart] [--short] [STAGE...]
# A stage that passed at this commit is not run again (state: build/nightly/state) unless --restart; an interrupted one goes on where its
# tools can. --short: a taste of each stage, in minutes. No STAGE: all of them, whose status is 1 when one failed.
#   TESSERA_FUZZ_SECONDS  length of the fuzz stage, default 7200    TESSERA_JOBS  parallel compilations
#   TESSERA_READER_FUZZ_SECONDS  of each reader in reader_fuzz, default 10
#   TESSERA_MUTANTS  mutants that the stage mutate tries, default 40
# A new stage is a function stage_NAME (its last line of output goes into the log; its status decides) and a word in `all`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD state=$PWD/build/nightly/state logs=$PWD/build/nightly/logs
all=(asan tsan tidy mutants mutate parity context fuzz reader_fuzz readers slow clients launch channel kills lost_work python export no_python wheel torch_versions docs fresh)

list='' restart='' short='' chosen=()
for argument in "$@"; do
  case $argument in
    --list | --restart | --short) declare "${argument#--}=1" ;;
    -*) sed -n '3,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
    *) chosen+=("$argument") ;;
  esac
done
((${#chosen[@]})) || chosen=("${all[@]}")
for stage in "${chosen[@]}"; do
  [[ " ${all[*]} " == *" $stage "* ]] || { echo "nightly: no stage '$stage'; there are: ${all[*]}" >&2; exit 2; }
done
if [[ -n $list ]]; then printf '%s\n' "${chosen[@]}"; exit; fi

if [[ -z ${TESSERA_TORCH_ROOT:-} ]]; then
  scripts/setup.sh
  source .deps/env.sh
fi
jobs=${TESSERA_JOBS:-$(env -u OMP_NUM_THREADS nproc)}
mkdir -p "$state" "$logs"
commit=$(git rev-parse HEAD)
git diff --quiet HEAD -- . ':!docs' ':!tests/NIGHTLY.md' || echo "nightly: there are uncommitted changes; the log names the commit below them"

# preset, programs...: builds them and runs all their cases under ctest
sanitized() {
  local preset=$1 pattern
  shift
  pattern="^($(IFS='|'; echo "$*")): "
  cmake --preset "$preset" -DTESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT" >"$logs/$preset-configure.log"
  cmake --build --preset "$preset" -j "$jobs" --target "$@"
  # Not what compares times.
  ctest --preset "$preset" -j "$jobs" --no-tests=error -R "$pattern" -E 'predicted steps order what layouts take' || return 1
  echo "$(ctest --preset "$preset" -N -R "$pattern" | sed -n 's/^Total Tests: //p') test cases of $*"
}
programs=(test_comm conformance_local test_sharding test_backends test_pipeline test_tensor)
# What reads, keeps and writes: not asked of tsan, which is for ranks that share memory.
one_rank=(test_core test_model test_adapted_modules test_models test_ops test_optim test_state test_checkpoint test_data test_huggingface
          test_reader_corpora test_metrics test_generation test_train test_call_order test_plan test_footprint test_peak test_predict test_testing test_settings
          test_tokenize test_plan_tool test_report test_programs)
[[ -z $short ]] || programs=(test_comm test_sharding) one_rank=(test_state)
benchmarks=(bench_checkpoint bench_collectives bench_data bench_fp8 bench_generation bench_host_adamw bench_host_cost bench_ops bench_strategies)
stage_asan() {
  sanitized asan "${programs[@]}" "${one_rank[@]}"
  cmake --build --preset asan -j "$jobs" --target "${benchmarks[@]}"
  ctest --preset asan --output-on-failure --no-tests=error -R '^programs_benchmarks$' || return 1
  echo "$(ctest --preset asan -N -R "^($(IFS='|'; echo "${programs[*]}|${one_rank[*]}")): " | sed -n 's/^Total Tests: //p') test cases, and ${#benchmarks[@]} benchmarks with small sizes"
}
# Every file; what passed at this commit is kept. --short: the files of the newest commit.
stage_tidy() {
  local which=--all
  [[ -z $short ]] || which=HEAD~1
  TESSERA_JOBS=$jobs scripts/tidy.sh "$which"
}
stage_tsan() { sanitized tsan "${programs[@]}"; }
stage_mutants() {
  local patterns=()
  [[ -z $short ]] || patterns=('optim-*')
  scripts/mutants.sh "${patterns[@]}"
}
# Mutants of what changed since this stage passed last (or in 20 commits); half of those that compile must be killed, survivors are named.
stage_mutate() {
  local tree=$PWD/build/mutate/tree mark=$state/mutate.since limit=${TESSERA_MUTANTS:-40} since
  [[ -z $short ]] || limit=3
  since=$(cat "$mark" 2>/dev/null || git rev-list -n 1 --skip 20 HEAD)
  git worktree prune
  [[ -e $tree/.git ]] || git worktree add --quiet --force --detach "$tree" "$commit"
  git -C "$tree" checkout --quiet --force --detach "$commit"
  # Each source alone: a mutant compiles one file.
  (cd "$tree" && cmake --preset release -DTESSERA_UNITY=OFF -DTESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT") >"$logs/mutate-configure.log"
  OMP_NUM_THREADS=1 python3 -B scripts/mutate.py --root "$tree" --since "$since" --limit "$limit" --seed "$commit" --jobs "$jobs" --least 50 ${restart:+--restart} || return 1
  [[ -n $short ]] || echo "$commit" >"$mark"
}
release_target() {
  local preset=${TESSERA_PRESET:-release}
  cmake --preset "$preset" -DTESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT" >"$logs/$preset-configure.log"
  cmake --build --preset "$preset" -j "$jobs" --target "$@"
}
stage_fuzz() {
  release_target fuzz_layouts
  local how=(--seconds "${TESSERA_FUZZ_SECONDS:-7200}" --least 20 --case-seconds 900)
  [[ -z $short ]] || how=(--seconds 20)
  # A rank that is late because others have the host is no hang.
  TESSERA_COLLECTIVE_TIMEOUT_S=300 "build/${TESSERA_PRESET:-release}/bin/fuzz_layouts" --seed "$(date +%s)" "${how[@]}"
}
# Every family of models under every layout, against transformers' numbers.
stage_parity() {
  release_target test_huggingface
  TESSERA_WHOLE_MATRIX=1 "build/${TESSERA_PRESET:-release}/bin/test_huggingface" '*trains as in transformers*'
}
# Every combination of the context axis's properties; --short: every pair.
stage_context() {
  release_target test_parity_context
  local whole=1
  [[ -z $short ]] || whole=''
  local part waited=0 parts=() bin="build/${TESSERA_PRESET:-release}/bin/test_parity_context"
  for ((part = 1; part <= jobs; ++part)); do
    env ${whole:+TESSERA_WHOLE_MATRIX=1} "TESSERA_MATRIX_PART=$part/$jobs" OMP_NUM_THREADS=1 "$bin" '*every pair of its properties' >"$logs/context-$part.log" 2>&1 &
    parts+=($!)
  done
  for part in "${!parts[@]}"; do
    wait "${parts[part]}" || { waited=1; tail -40 "$logs/context-$((part + 1)).log"; }
  done
  grep -h 'combinations of the context axis' "$logs"/context-[0-9]*.log
  return "$waited"
}
# Needs clang-19 with libFuzzer (Debian: clang-19 libclang-rt-19-dev).
stage_reader_fuzz() {
  local seconds=${TESSERA_READER_FUZZ_SECONDS:-10}
  [[ -z $short ]] || seconds=2
  command -v clang++-19 || { echo "no clang++-19: apt-get install clang-19 libclang-rt-19-dev"; return 1; }
  cmake --preset fuzz -DTESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT" >"$logs/fuzz-configure.log"
  cmake --build --preset fuzz -j "$jobs"
  tests/fuzz/readers/run.sh build/fuzz "$seconds"
}
stage_readers() {
  release_target all
  ctest --test-dir "build/${TESSERA_PRESET:-release}" --output-on-failure --no-tests=error -L readers || return 1
  echo "files opened by the libraries that others read them with"
}

# What the suite leaves out for its length alone.
stage_slow() {
  release_target all
  ctest --test-dir "build/${TESSERA_PRESET:-release}" --output-on-failure --no-tests=error -L nightly -LE 'readers|package' || return 1
  echo "entries of the suite that take minutes"
}

# Other people's builds with everything compiled anew.
stage_clients() {
  release_target all
  local build=build/${TESSERA_PRESET:-release} chosen=()
  rm -rf "$build/tests/package/work"
  [[ -z $short ]] || chosen=(-R 'package_(install|find_package_3.16)')
  CCACHE_DISABLE=1 ctest --test-dir "$build" --output-on-failure --no-tests=error -L package "${chosen[@]}" || return 1
  echo "$(ctest --test-dir "$build" -N -L package "${chosen[@]}" | sed -n 's/^Total Tests: //p') entries, without ccache"
}

stage_launch() {
  release_target conformance_processes tessera-finetune-squad
  local names=()
  [[ -z $short ]] || names=(torchrun)
  tests/launch/run.sh "build/${TESSERA_PRESET:-release}/bin" "${names[@]}"
}

# Stopped ranks, strangers, two jobs on one port, a cut network.
stage_channel() {
  release_target conformance_processes ending_ranks tessera-finetune-squad
  local bin=build/${TESSERA_PRESET:-release}/bin phases='' connections=10000 times=50
  [[ -z $short ]] || phases=step connections=1000 times=2
  python3 -B tests/channel/stopped.py "$bin/conformance_processes" --ranks 4
  python3 -B tests/channel/stopped_training.py . "$bin" --phases "$phases"
  python3 -B tests/channel/strangers.py "$bin/conformance_processes" --connections $connections
  python3 -B tests/channel/partition.py "$bin/conformance_processes" --limit 5
  python3 -B tests/channel/races.py "$bin/conformance_processes" --times $times
  python3 -B tests/channel/endings.py "$bin/ending_ranks"
}

stage_kills() {
  release_target tessera-finetune-squad
  local kills=100
  [[ -z $short ]] || kills=2
  python3 -B tests/kill/kill.py . "build/${TESSERA_PRESET:-release}/bin" --kills "$kills" --log "$state/kills-$commit.jsonl"
}

# Every command of README and of the pages in a fresh clone, and the site; --short: README and the site.
stage_docs() {
  local pages=()
  [[ -z $short ]] || pages=(README.md)
  scripts/site.sh
  TESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT" scripts/docs_check.sh "${pages[@]}"
}

# demo.sh and test.sh in a bare Debian 12, as root of it, with this host's network and certificates; --short: the first one.
stage_fresh() {
  local commands=(demo test)
  [[ -z $short ]] || commands=(demo)
  scripts/fresh_root.sh build/nightly/fresh "${commands[@]}"
}

stage_lost_work() {
  release_target tessera-finetune-squad tessera-finetune-classification tessera-checkpoint failing_files
  local how=(--races 200 --interrupts 30 --every-kind)
  [[ -z $short ]] || how=(--races 3 --interrupts 3)
  TESSERA_CACHE_DIR=none python3 -B tests/programs/lost_work.py . "build/${TESSERA_PRESET:-release}/bin" "${how[@]}"
}

# The Python module, beside the torch of the same version; these and nanobind come from the package index.
stage_python() {
  local preset=${TESSERA_PRESET:-release} venv=$PWD/build/nightly/venv-python version
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet nanobind numpy
  trap "cmake --preset $preset -DTESSERA_BUILD_PYTHON=OFF >>$logs/$preset-configure.log" EXIT  # of this stage's subshell: the suite is as before
  cmake --preset "$preset" -DTESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT" -DTESSERA_BUILD_PYTHON=ON -DPython_EXECUTABLE="$venv/bin/python" |
    tee "$logs/$preset-configure.log"
  cmake --build --preset "$preset" -j "$jobs" --target tessera_python tessera-finetune-causal
  ctest --preset "$preset" --no-tests=error -R '^python_module$' || return 1
  if [[ -z $short ]]; then
    version=$(sed -n 's/^-- *LibTorch *\([0-9.]*\) .*/\1/p' "$logs/$preset-configure.log")
    "$venv/bin/pip" install --quiet "torch==$version" transformers==5.24.0 safetensors==0.8.0
    ctest --preset "$preset" --no-tests=error -R '^python_module$' || return 1
  fi
  echo "the module in a fresh virtual environment gives the program's numbers${version:+, beside torch $version, too}"
}

# The exporter beside torch and transformers, which come from the package index; exported directories are trained in C++, under every layout,
# on a tensor axis of two processes, and with adapters beside PEFT. --short: without the forty families.
stage_export() {
  local bin=$PWD/build/${TESSERA_PRESET:-release}/bin venv=$PWD/build/nightly/venv-export families=$PWD/build/nightly/families python programs root=()
  python=$venv/bin/python
  release_target exported_parity exported_tensor exported_lora
  if [[ ! -e $venv/complete-with-peft ]]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet torch==2.11.0 transformers==5.24.0 safetensors==0.8.0 peft==0.21.2 numpy
    touch "$venv/complete-with-peft"
  fi
  export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONPATH=$PWD/python
  "$python" -B tests/python/export_test.py . || return 1
  "$python" -B tests/python/export_modules.py --checker "$bin/exported_parity" || return 1
  if [[ -n $short ]]; then
    echo "modules train as programs"
    return
  fi
  rm -rf "$families"
  "$python" -B tests/python/export_families.py --checker "$bin/exported_parity" --jobs "$jobs" --keep "$families" --table "$logs/families.md" >"$logs/families.jsonl" || return 1
  programs=("$families"/*/program.json)
  "$python" -B tests/python/replaced_table.py "$bin/exported_parity" "$logs/replaced.md" "${programs[@]%/program.json}" || return 1
  ((EUID)) || root=(--allow-run-as-root)
  mpirun "${root[@]}" --oversubscribe -n 2 "$bin/exported_tensor" mpi "${programs[@]%/program.json}" >"$logs/tensor.txt" || return 1
  "$python" -B tests/python/lora_families.py "$bin/exported_lora" >"$logs/lora.jsonl" || return 1
  echo "modules and tiny models train as programs; $(tail -1 "$logs/families.jsonl"); $(grep -c ': equal$' "$logs/tensor.txt") on a tensor axis; $(wc -l <"$logs/lora.jsonl") adapters as in PEFT"
}

# An exported program trains in a root that has no Python and no shell (needs root).
stage_no_python() {
  release_target tessera-finetune-causal
  tests/programs/bare_root.sh "build/${TESSERA_PRESET:-release}/bin" tests/data/programs/olmoe
}

# The wheel: in a virtual environment, offline, and in bare Debian roots, where packaging/Dockerfile runs, too (root, debootstrap).
stage_wheel() {
  local wheel offline=$PWD/build/nightly/offline examples=$PWD/build/nightly/venv-examples
  scripts/wheel.sh cpu
  wheel=$(ls -t dist/tessera_train-*.whl | head -1)
  python3 -B tests/package/wheel.py . "$wheel" || return 1
  if [[ -z $short ]]; then
    # The programs of examples/python under torchrun, beside plain PyTorch loops.
    rm -rf "$examples"
    python3 -m venv "$examples"
    "$examples/bin/pip" install --quiet "$wheel[export]" numpy
    env -u PYTHONPATH OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "$examples/bin/python" -B tests/python/examples_test.py . || return 1
    rm -rf "$offline"
    scripts/offline.sh "$wheel" "$offline" numpy
    python3 -B tests/package/wheel.py . "$wheel" --find-links "$offline" || return 1
    python3 -B tests/package/bare_roots.py . "$wheel" build/nightly/roots || return 1
  fi
  echo "$(basename "$wheel"): $(du -h "$wheel" | cut -f1), in a virtual environment$([[ -n $short ]] || echo ', with the programs of examples/python, offline, in bare roots and as an image')"
}

# The oldest LibTorch that is taken, and the newest of the package index; all other stages have the one of setup.sh.
stage_torch_versions() {
  local versions=(2.9.1 newest) version folder root pattern said=()
  [[ -z $short ]] || versions=(newest)
  pattern="^($(IFS='|'; echo "${programs[*]}|${one_rank[*]}")): "
  for version in "${versions[@]}"; do
    folder=build/nightly/torch-$version
    root=$(scripts/torch_version.sh "$folder/venv" "${version#newest}")
    cmake --preset release -B "$folder/build" -DTESSERA_TORCH_ROOT="$root" | tee "$folder/configure.log"
    cmake --build "$folder/build" -j "$jobs" --target "${programs[@]}" "${one_rank[@]}"
    ctest --test-dir "$folder/build" --output-on-failure --no-tests=error -R "$pattern" -E 'predicted steps order what layouts take' || return 1
    said+=("$(sed -n 's/^-- *LibTorch *\([0-9.]*\) .*/\1/p' "$folder/configure.log")")
  done
  echo "built and tested with LibTorch ${said[*]}"
}

# result, seconds, what: the newest line of the table
write_log() {
  local log=tests/NIGHTLY.md row
  [[ -e $log ]] || printf '%s\n\n' '# Nightly runs' \
    'Written by `scripts/nightly.sh`; newest first. `short` marks a taste of a stage.' >"$log"
  grep -q '^| date' "$log" || printf '%s\n' '| date (UTC) | commit | stage | result | duration | |' '|---|---|---|---|---|---|' >>"$log"
  row="| $(date -u +'%F %H:%M') | ${commit:0:10} | $1${short:+ (short)} | $2 | $(($3 / 60)) min $(($3 % 60)) s | ${4//|//} |"
  awk -v row="$row" '{ print } /^\|---/ && !done { print row; done = 1 }' "$log" >"$log.new" && mv "$log.new" "$log"
}

failed=()
for stage in "${chosen[@]}"; do
  stamp=$state/$stage${short:+-short} log=$logs/$stage.log
  [[ -z $restart ]] || rm -f "$stamp"
  if [[ -e $stamp && $(<"$stamp") == "$commit" ]]; then
    echo "nightly: $stage passed at ${commit:0:10} before"
    continue
  fi
  echo "nightly: $stage ... (log: ${log#"$root"/})"
  begin=$SECONDS result=passed
  set +e  # a function called in a condition would go on behind its errors
  (set -e; "stage_$stage") >"$log" 2>&1
  [[ $? == 0 ]] || result=failed
  set -e
  what=$(grep -v '^ *$' "$log" | tail -1 | cut -c1-200)
  write_log "$stage" "$result" $((SECONDS - begin)) "$what"
  echo "nightly: $stage $result after $((SECONDS - begin)) s: $what"
  if [[ $result == passed ]]; then echo "$commit" >"$stamp"; else failed+=("$stage"); fi
done
echo "nightly: ${#failed[@]} of ${#chosen[@]} stages failed at ${commit:0:10}${failed[*]:+: ${failed[*]}}"
((${#failed[@]} == 0))
