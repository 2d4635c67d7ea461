#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Trains an exported program in a root that holds the program, the libraries it is linked with and the files it reads: no Python, no shell.
#   tests/programs/bare_root.sh BIN_FOLDER MODEL      needs root (chroot)
set -euo pipefail
binary=$(realpath "$1")/tessera-finetune-causal model=$2
root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT
ldd "$binary" | grep -o '/[^ ]*' | sort -u | while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  ln "$(realpath "$library")" "$root$library" 2>/dev/null || cp -L "$library" "$root$library"
done
mkdir -p "$root/tmp" "$root/work" "$root/dev"
mknod -m 666 "$root/dev/urandom" c 1 9
cp -L "$binary" "$root/work/train"
cp -rL "$model" "$root/work/model"
found=$(find "$root" -name '*.py' -o -name 'python*' -path '*/bin/*' -o -name 'libpython*')
[[ -z $found ]] || { echo "bare_root: Python is there: $found" >&2; exit 1; }
env -i HOME=/tmp OMP_NUM_THREADS=1 PATH=/usr/sbin:/usr/bin chroot "$root" /work/train --model /work/model --random_rows 8 --max_seq_length 24 --max_steps 2 \
  --per_device_train_batch_size 2 --ranks 2 --strategy zero3 --output_dir /work/out
[[ -f $root/work/out/final/model.safetensors ]]
echo "$(basename "$model") trains without Python: $(ls "$root/work/out/final" | tr '\n' ' ')"
