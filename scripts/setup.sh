#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what tessera needs to build: system packages, and LibTorch from its wheel into .deps/. A second run takes seconds.
# Writes .deps/env.sh (preset, LibTorch folder, PATH) for demo.sh and test.sh.
#   scripts/setup.sh [--checks]     --checks: what the suite needs beside the build, too (clang-format 14)
#   TESSERA_CUDA=on|off            build the CUDA part or not; default: on when a toolkit and a GPU are there
#   TESSERA_TORCH_ROOT, Torch_DIR, CMAKE_PREFIX_PATH   use this LibTorch instead of downloading one
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
torch_version=2.11.0
say() { echo "setup: $*"; }
die() { echo "setup: error: $*" >&2; exit 1; }

# --- system packages: (package, command or header that shows it is there)
wanted=(
  g++ g++  cmake cmake  ninja-build ninja  python3-venv python3  openmpi-bin mpirun
  libopenmpi-dev mpi.h  libabsl-dev absl/strings/string_view.h  catch2 catch2  libbenchmark-dev benchmark/benchmark.h
  nlohmann-json3-dev nlohmann/json.hpp  libxxhash-dev xxhash.h  libhwy-dev hwy/highway.h
  libhwloc-dev hwloc.h
)
case ${1:-} in
  '') ;;
  --checks) wanted+=(clang-format-14 clang-format-14) ;;
  *) die "usage: scripts/setup.sh [--checks]" ;;
esac
present() {  # package, probe
  if command -v dpkg-query >/dev/null; then
    dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed' && return 0
  fi
  [[ $1 != python3-venv ]] || { python3 -c 'import ensurepip' 2>/dev/null; return; }
  command -v "$2" >/dev/null || [[ -e /usr/include/$2 || -e /usr/local/include/$2 ]]
}
missing=()
for ((i = 0; i < ${#wanted[@]}; i += 2)); do
  present "${wanted[i]}" "${wanted[i + 1]}" || missing+=("${wanted[i]}")
done
if ((${#missing[@]})); then
  install="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  command -v apt-get >/dev/null || die "please install the equivalents of these Debian packages: ${missing[*]}"
  if [[ $(id -u) == 0 ]]; then
    as_root=(bash -c)
  elif command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then
    as_root=(sudo bash -c)
  else
    die "system packages are missing; run as root:  $install"
  fi
  say "installing ${missing[*]}"
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" "$install" || die "the package manager failed; try:  $install"
fi

# --- CUDA or not
cuda=${TESSERA_CUDA:-auto}
toolkit=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
case $cuda in
  auto)
    cuda=off
    if [[ -n $toolkit ]] && command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then cuda=on; fi ;;
  on) [[ -n $toolkit ]] || die "TESSERA_CUDA=on, but no nvcc was found; install a CUDA 13 toolkit or unset it" ;;
  off) ;;
  *) die "TESSERA_CUDA must be on, off or auto, not '$cuda'" ;;
esac
preset=release
[[ $cuda == off ]] || preset=cuda

# --- LibTorch: the user's own, else the wheel
torch_root=
for candidate in "${TESSERA_TORCH_ROOT:-}" "${Torch_DIR:+$Torch_DIR/../../..}" $(tr ':;' '  ' <<<"${CMAKE_PREFIX_PATH:-}"); do
  if [[ -n $candidate && -e $candidate/lib/libtorch_cpu.so ]]; then
    torch_root=$(cd "$candidate" && pwd)
    break
  fi
done
if [[ -n ${TESSERA_TORCH_ROOT:-} && -z $torch_root ]]; then
  die "TESSERA_TORCH_ROOT=$TESSERA_TORCH_ROOT holds no lib/libtorch_cpu.so"
fi
mkdir -p .deps
venv=$PWD/.deps/venv
make_venv() {
  [[ -x $venv/bin/python ]] || python3 -m venv "$venv" || die "python3 -m venv failed; install python3-venv"
}
pip_install() { "$venv/bin/python" -m pip install --quiet --no-cache-dir "$@"; }
if [[ -z $torch_root ]]; then
  stamp=.deps/torch-$torch_version-$preset
  if [[ ! -e $stamp ]]; then
    make_venv
    if [[ $cuda == on ]]; then
      packages=("torch==$torch_version" nvidia-cudnn-frontend)
    else  # libtorch_cpu.so of the wheel needs these two libraries and no others
      packages=(--no-deps "torch==$torch_version" 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cupti==13.0.*')
    fi
    say "downloading LibTorch $torch_version ($([[ $cuda == on ]] && echo 'with its CUDA libraries, about 6 GB' || echo 'about 0.6 GB'))"
    pip_install "${packages[@]}" ||
      die "could not install torch==$torch_version; check the network, or set TESSERA_TORCH_ROOT to a LibTorch $torch_version"
    touch "$stamp"
  fi
  torch_root=$(echo "$venv"/lib/python3*/site-packages/torch)
  [[ -e $torch_root/lib/libtorch_cpu.so ]] || { rm -f "$stamp"; die "$torch_root is not complete; run again"; }
fi

# --- a CMake that knows presets of version 6
path_prefix=
if ! printf '3.25\n%s\n' "$(cmake --version | sed -n 's/^cmake version //p')" | sort -VC; then
  [[ -x $venv/bin/cmake ]] || { say "downloading a newer CMake"; make_venv; pip_install 'cmake>=3.25,<4' || die "could not install cmake>=3.25"; }
  path_prefix=$venv/bin:
fi
[[ -z $toolkit ]] || path_prefix=$path_prefix$(dirname "$toolkit"):

# Parallel compilations: one a core, and about 2 GiB of memory for each.
jobs=$(env -u OMP_NUM_THREADS nproc)
by_memory=$(awk '/MemAvailable/ {print int($2 / 2097152)}' /proc/meminfo)
((by_memory >= jobs)) || jobs=$((by_memory > 0 ? by_memory : 1))
cat >.deps/env.sh <<END
export TESSERA_PRESET=$preset TESSERA_TORCH_ROOT='$torch_root' TESSERA_JOBS=$jobs
export PATH="$path_prefix\$PATH"
END
say "ready: preset $preset, LibTorch in $torch_root"
