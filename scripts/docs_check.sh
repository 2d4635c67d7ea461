#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The whole check of the pages: links, names and marks, then every shell block of README and of docs/ in a fresh clone of the newest commit.
#   scripts/docs_check.sh [PAGE...]     pages: README.md docs/get-started/install.md ...; default: all
# TESSERA_TORCH_ROOT: a LibTorch that the clone takes instead of downloading one. Logs of the pages: build/docs/logs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python3 -B scripts/docs_check.py --links .
exec python3 -B scripts/docs_check.py --run . "$@"
