#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Set-up, build and the whole test suite; ctest's summary comes last and its status is the exit status.
# A test that this host cannot run is an error, not a skip. Arguments go to ctest, for example: scripts/test.sh -L unit
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh --checks
source .deps/env.sh
cmake --preset "$TESSERA_PRESET" -DTESSERA_TORCH_ROOT="$TESSERA_TORCH_ROOT" -DTESSERA_REQUIRE_ALL=ON
cmake --build --preset "$TESSERA_PRESET" -j "$TESSERA_JOBS"
exec ctest --preset "$TESSERA_PRESET" -j "$(env -u OMP_NUM_THREADS nproc)" "$@"
