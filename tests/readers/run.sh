#!/usr/bin/env bash
# Opens what the programs write with the libraries that others read it with, and sets other trainers beside ours, in a virtual environment of its own.
#   run.sh SOURCE_ROOT BIN_FOLDER TORCH_ROOT
# The environment lies in SOURCE_ROOT/.deps/readers and is made once for these versions; LibTorch's own wheel serves where Python can
# import it (a wheel without its CUDA libraries it cannot), else torch is installed too. What is missing is a failure.
set -euo pipefail
root=$1 bin=$2 torch_root=$3
packages=(transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 tensorboard==2.21.0 accelerate==1.15.0)
torch=torch==2.11.0
venv=$root/.deps/readers/venv
stamp=$root/.deps/readers/made-of
die() { echo "readers: error: $*" >&2; exit 1; }

command -v python3 >/dev/null || die "there is no python3; install python3-venv"
wanted="$(python3 --version) ${packages[*]} $torch $torch_root"
if [[ $(cat "$stamp" 2>/dev/null) != "$wanted" ]]; then
  rm -rf "$venv"
  mkdir -p "$(dirname "$venv")"
  python3 -m venv "$venv" || die "python3 -m venv failed; install python3-venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}" || die "could not install ${packages[*]}; check the network"
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  dirname "$torch_root" >"$site/torch.pth"  # behind the environment's own packages
  if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
    rm "$site/torch.pth"
    echo "readers: Python cannot import the torch in $torch_root; installing $torch"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$torch" || die "could not install $torch; check the network"
  fi
  echo "$wanted" >"$stamp"
fi
export HF_HUB_OFFLINE=1
"$venv/bin/python" -B "$root/tests/readers/open_outputs.py" "$root" "$bin"
"$venv/bin/python" -B "$root/tests/readers/peers.py" "$root" "$bin"
