#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what is missing (setup.sh) and builds every program of examples/, without tests and benchmarks.
# Writes .deps/path.sh, which puts the programs on PATH:  scripts/build.sh && source .deps/path.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
source .deps/env.sh
cmake --preset "$TESSERA_PRESET" -DTESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT" -DTESSERA_BUILD_TESTS=OFF -DTESSERA_BUILD_BENCHMARKS=OFF \
  >.deps/configure.log || { cat .deps/configure.log; exit 1; }
cmake --build --preset "$TESSERA_PRESET" -j "$TESSERA_JOBS" --target tessera_programs
bin=$PWD/build/$TESSERA_PRESET/bin
echo "export PATH='$bin':\"\$PATH\"" >.deps/path.sh
echo "build: the programs are in ${bin#"$PWD"/}; to have them on PATH:  source .deps/path.sh"
