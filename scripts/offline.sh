#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One folder for hosts without a network: the wheel and the wheels that it needs, for the Python and platform of this host.
#   scripts/offline.sh WHEEL FOLDER [PACKAGE...]     PACKAGE: more of the package index, such as numpy
# There: python3 -m venv venv && venv/bin/pip install --no-index --find-links FOLDER tessera-train
set -euo pipefail
wheel=${1:?usage: scripts/offline.sh WHEEL FOLDER [PACKAGE...]} folder=${2:?usage: scripts/offline.sh WHEEL FOLDER [PACKAGE...]}
shift 2
[[ -f $wheel ]] || { echo "offline: no file $wheel; scripts/wheel.sh makes one in dist/" >&2; exit 2; }
mkdir -p "$folder"
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/pip" download --quiet --only-binary :all: --dest "$folder" "$wheel" "$@"
(cd "$folder" && sha256sum -- *.whl >SHA256SUMS)
echo "$folder: $(ls "$folder"/*.whl | wc -l) wheels, $(du -sh "$folder" | cut -f1), for $("$tools/bin/python" -c 'import sys, sysconfig
print(f"Python {sys.version_info[0]}.{sys.version_info[1]} on {sysconfig.get_platform()}")')"
