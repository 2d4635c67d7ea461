# SPDX-License-Identifier: MIT
"""Completions that scripts/make_completions.py makes of the programs. Usage: completions.py SOURCE_ROOT FOLDER_OF_PROGRAMS"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT, BIN = (pathlib.Path(text).absolute() for text in sys.argv[1:3])
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_completions_"))
(folder / "bin").mkdir()
for name in ("tessera-checkpoint", "tessera-finetune-squad", "tessera-report"):
    (folder / "bin" / name).symlink_to(BIN / name)
subprocess.run([sys.executable, "-B", ROOT / "scripts/make_completions.py", folder / "bin", folder / "share"], check=True)
failures = 0


def check(condition, what):
    global failures
    if not condition:
        failures += 1
        print(f"FAILED: {what}")


def completed(*words):
    """What bash offers behind these words, the last of which is being written."""
    script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "_${1//-/_}"; printf "%s\\n" "${COMPREPLY[@]}"'
    file = folder / "share/bash-completion/completions" / words[0]
    run = subprocess.run(["bash", "-c", script, "--", file, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, cwd=folder)
    return run.stdout.split()


# Every flag, by its own list, and nothing else.
config = subprocess.run([BIN / "tessera-finetune-squad", "--print_config"], stdout=subprocess.PIPE, text=True, check=True).stdout
names = {"--" + name for name in json.loads(config)} | {"--config", "--print_config", "--help", "--version"}
offered = set(completed("tessera-finetune-squad", "--"))
check(offered == names, f"the flags of --print_config: without {sorted(names - offered)}, and {sorted(offered - names)}")
check(set(completed("tessera-finetune-squad", "--stra")) == {"--strategy"}, "a prefix gives the flag")
check(completed("tessera-finetune-squad", "--strategy", "zero") == ["zero1", "zero2", "zero3"], "a flag's values")
check(completed("tessera-finetune-squad", "--train_file", "b") == ["bin"], "files behind a flag of files")
check(set(completed("tessera-checkpoint", "ve")) == {"verify"}, "a command")
check(set(completed("tessera-checkpoint", "export", "--")) == {"--dtype", "--tokenizer", "--max_shard_bytes", "--config", "--print_config", "--help", "--version"},
      "the flags of a program's commands, and no other program's")
check("--output_dir" in completed("tessera-report", "--out"), "a program that begins without LibTorch")
zsh = folder / "share/zsh/site-functions"
for path in sorted(zsh.iterdir()):
    text = path.read_text()
    check(text.startswith(f"#compdef {path.name[1:]}\n"), f"{path.name} names its program")
    if shutil.which("zsh"):
        check(subprocess.run(["zsh", "-n", path]).returncode == 0, f"{path.name} is a script of zsh")
text = (zsh / "_tessera-finetune-squad").read_text()
check(all(f"'{name}[" in text for name in names), "zsh knows every flag")
check("(single ddp zero1 zero2 zero3 fsdp)" in text, "and its values")
shutil.rmtree(folder)
print("completions are the programs' flags" if failures == 0 else f"{failures} checks failed")
sys.exit(1 if failures else 0)
