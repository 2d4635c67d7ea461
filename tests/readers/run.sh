#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Opens what the programs write with the libraries that others read it with, and sets other trainers beside ours, in a virtual environment of its own.
#   run.sh SOURCE_ROOT BIN_FOLDER TORCH_ROOT
# The environment lies in SOURCE_ROOT/.deps/readers and is made once for these versions; LibTorch's own wheel serves where Python can
# import it (a wheel without its CUDA libraries it cannot), else torch is installed too. What is missing is a failure.
#   TESSERA_CHAT_TEMPLATES  more folders of *.jinja, with blanks between them, beside the chat templates of trl
set -euo pipefail
root=$1 bin=$2 torch_root=$3
packages=(transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 tensorboard==2.21.0 accelerate==1.15.0 peft==0.21.2)
torch=torch==2.11.0 trl=trl==1.16.0
venv=$root/.deps/readers/venv
stamp=$root/.deps/readers/made-of
die() { echo "readers: error: $*" >&2; exit 1; }

command -v python3 >/dev/null || die "there is no python3; install python3-venv"
wanted="$(python3 --version) ${packages[*]} $torch $trl $torch_root"
if [[ $(cat "$stamp" 2>/dev/null) != "$wanted" ]]; then
  rm -rf "$venv" "$root/.deps/readers/trl"
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
  # Only its chat templates are read, so what it needs is not installed.
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$root/.deps/readers/trl" "$trl" || die "could not install $trl; check the network"
  echo "$wanted" >"$stamp"
fi
export HF_HUB_OFFLINE=1
# shellcheck disable=SC2086
"$venv/bin/python" -B "$root/tests/readers/chat_templates.py" "$root" "$bin" "$root/.deps/readers/trl/trl/chat_templates" ${TESSERA_CHAT_TEMPLATES:-}
"$venv/bin/python" -B "$root/tests/readers/open_outputs.py" "$root" "$bin"
"$venv/bin/python" -B "$root/tests/readers/adapters.py" "$root" "$bin"
"$venv/bin/python" -B "$root/tests/readers/peers.py" "$root" "$bin"
