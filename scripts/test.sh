#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Set-up, build and the whole test suite; ctest's summary comes last and its status is the exit status.
# A test that this host cannot run is an error, not a skip. Arguments go to ctest, for example: scripts/test.sh -L unit
#   --target T     before them: builds only this (tests_LABEL: the test programs with this label)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh --checks
source .deps/env.sh
cmake --preset "$TESSERA_PRESET" -DTESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT" -DTESSERA_REQUIRE_ALL=ON
targets=()
while [[ ${1:-} == --target ]]; do targets+=("$1" "$2"); shift 2; done
cmake --build --preset "$TESSERA_PRESET" -j "$TESSERA_JOBS" "${targets[@]}"
exec ctest --preset "$TESSERA_PRESET" -j "$(env -u OMP_NUM_THREADS nproc)" "$@"
