#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Starts the conformance suite and a fine-tuning step with real launchers, as users do, and prints what each has proved.
#   tests/launch/run.sh BIN_FOLDER [torchrun|slurm|mpich|namespaces...]      default: all
# Needs root (Slurm's daemons, network namespaces) and, the first time, Debian's packages slurm-wlm, munge and mpich and the wheel of
# torch; the last two go into .deps/. TESSERA_TORCH_ROOT may point into a site folder that holds the whole wheel.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$(cd "${1:?usage: run.sh BIN_FOLDER [NAME...]}" && pwd)
shift
names=("$@")
((${#names[@]})) || names=(torchrun slurm mpich namespaces)
deps=$root/.deps work=$(mktemp -d)
conformance=$bin/conformance_processes
export OMP_NUM_THREADS=1
for name in $(compgen -e | grep -E '^(RANK|WORLD_SIZE|LOCAL_|MASTER_|OMPI_|PMIX?_|SLURM_|TORCHELASTIC_|TESSERA_(JOB|HOST))' || true); do unset "$name"; done

cleanup=()  # commands, the last first
clean_up() {
  local i
  for ((i = ${#cleanup[@]} - 1; i >= 0; --i)); do eval "${cleanup[i]}" || true; done
  cleanup=()
  rm -rf "${work:?}"/*
}
trap 'clean_up; rmdir "$work"' EXIT
die() { echo "launch: error: $*" >&2; exit 1; }
proved() { echo "launch: $1: $2"; }

# status pattern command...: the command must end with this status within three minutes and print the pattern
expect() {
  local status=$1 pattern=$2 got=0
  shift 2
  timeout 180 "$@" >"$work/output" 2>&1 || got=$?
  if [[ $got != "$status" ]] || ! grep -Eq -- "$pattern" "$work/output"; then
    cat "$work/output"
    die "'$*' ended with $got, expected $status and '$pattern'"
  fi
}
squad() {  # output folder, steps: training on the sample on the CPU, as arguments
  echo "$bin/tessera-finetune-squad --model_config bloom-tiny --tokenizer $root/examples/data/tokenizer" \
    "--train_file $root/examples/data/squad_sample.json --max_steps ${2:-2} --per_device_train_batch_size 2 --backend tcp --output_dir $1"
}
for name in "${names[@]}"; do
  [[ -e $root/tests/launch/$name.sh ]] || die "no launcher '$name'"
  source "$root/tests/launch/$name.sh"
  clean_up
done
echo "launch: ${#names[@]} launchers: ${names[*]}"
