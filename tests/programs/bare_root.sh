#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Trains an exported program in a root that holds the program, the libraries it is linked with and the files it reads: no Python, no shell.
#   tests/programs/bare_root.sh BIN_FOLDER MODEL TOKENIZER SQUAD_FILE      needs root (chroot)
set -euo pipefail
binary=$(realpath "$1")/tessera-finetune-squad model=$2 tokenizer=$3 squad=$4
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
cp -rL "$tokenizer" "$root/work/tokenizer"
cp -L "$squad" "$root/work/squad.json"
found=$(find "$root" -name '*.py' -o -name 'python*' -path '*/bin/*' -o -name 'libpython*')
[[ -z $found ]] || { echo "bare_root: Python is there: $found" >&2; exit 1; }
env -i HOME=/tmp OMP_NUM_THREADS=1 PATH=/usr/sbin:/usr/bin chroot "$root" /work/train --model_config /work/model --tokenizer /work/tokenizer --train_file /work/squad.json \
  --max_seq_length 96 --max_steps 2 --per_device_train_batch_size 2 --ranks 2 --strategy zero3 --output_dir /work/out
ls "$root/work/out/final"
[[ -f $root/work/out/final/model.safetensors ]]
