#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs LibTorch of a version, or the newest of the package index, for builds that do not use a GPU; prints its folder.
#   scripts/torch_version.sh FOLDER [VERSION]
# FOLDER is made a virtual environment. Another version there is replaced.
set -euo pipefail
folder=$1 version=${2:-}
[[ -x $folder/bin/python ]] || python3 -m venv "$folder" >&2
pip_install() { "$folder/bin/python" -m pip install --quiet --no-cache-dir --no-deps "$@" >&2; }
pip_install --upgrade "torch${version:+==$version}"
root=$(cd "$folder" && echo "$PWD"/lib/python3*/site-packages/torch)
# What libtorch_cpu.so of a wheel needs of CUDA, by the number in the library's name: 12 or 13.
for part in runtime:cudart cupti:cupti; do
  number=$(readelf -d "$root/lib/libtorch_cpu.so" | sed -n "s/.*NEEDED.*\[lib${part#*:}\.so\.\([0-9]*\)\].*/\1/p")
  [[ -z $number ]] || pip_install "nvidia-cuda-${part%:*}$([[ $number != 12 ]] || echo -cu12)==$number.*"
done
echo "$root"
