# SPDX-License-Identifier: MIT
"""Names that are not UTF-8: every program refuses them with one message and exit code 2, or works; a folder of such a name is no obstacle.

Usage: names.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import json
import os
import pathlib
import subprocess
import tempfile

from support import BIN, DATA, Checker

check = Checker()
folder = tempfile.TemporaryDirectory(prefix="tessera_names_")
bad = pathlib.Path(folder.name) / "bad\udcff"  # the byte 0xff
bad.mkdir()
TRAINING = ["tessera-finetune-squad", "tessera-finetune-causal", "tessera-finetune-classification", "tessera-finetune-chat"]


def run(program, *arguments, cwd=None):
    done = subprocess.run([BIN / program, *map(os.fspath, arguments)], capture_output=True, timeout=300, cwd=cwd)
    done.text = (done.stdout + done.stderr).decode(errors="replace")
    return done


def texts(program):
    """The flags of the program whose value is a text."""
    config = json.loads(run(program, "--print_config").stdout)
    return [name for name, flag in config.items() if isinstance(flag["value"], str)]


def refused(program, *arguments):
    done = run(program, *arguments)
    lines = [line for line in done.text.splitlines() if "UTF-8" in line]
    check.that(done.returncode == 2 and len(lines) == 1 and "internal" not in done.text,
               f"{program} {arguments!a}: exit {done.returncode}\n{done.text[-500:]}")


for program in TRAINING:
    names = texts(program)
    check.that(len(names) > 15, f"{program}: {len(names)} texts")
    for name in names if program == TRAINING[0] else ["output_dir", "train_file"]:
        refused(program, f"--{name}", bad)
for program, flag in (("tessera-generate", "--model"), ("tessera-generate", "--system"), ("tessera-plan", "--model"), ("tessera-compare", "--output_dir"),
                      ("tessera-tokenize", "--input"), ("tessera-env", "--directory"), ("tessera-report", "--output"), ("tessera-lint-ds", "--ranks")):
    refused(program, flag, bad)
refused(TRAINING[0], f"--output_dir={bad}")
refused(TRAINING[0], "--bad\udcff", "1")

# Files that are named without a flag may have any name.
(bad / "ds.json").write_text('{"train_batch_size": 8, "bad": 1}')
for arguments in (["tessera-lint-ds", bad / "ds.json"], ["tessera-lint-ds", "--json", bad / "ds.json"], ["tessera-lint-ds", "--json", bad / "none.json"],
                  ["tessera-report", bad], ["tessera-checkpoint", "inspect", bad], ["tessera-checkpoint", "verify", bad / "none"]):
    done = run(*arguments)
    check.that(done.returncode in (1, 2, 4) and "internal" not in done.text, f"{arguments!a}: exit {done.returncode}\n{done.text[-500:]}")

# A run inside such a folder, with a cache, a checkpoint and a resume; its metrics are JSON.
flags = ["--model_config", "bloom-tiny", "--tokenizer", DATA / "tokenizer", "--train_file", DATA / "sources" / "squad.txt", "--max_seq_length", "32",
         "--per_device_train_batch_size", "2", "--output_dir", "out", "--save_strategy", "steps", "--save_steps", "1", "--cache_dir", "cache"]
for more in (["--max_steps", "1"], ["--max_steps", "2", "--resume_from_checkpoint", "auto"]):
    done = run("tessera-finetune-causal", *flags, *more, cwd=bad)
    check.that(done.returncode == 0, f"a run in such a folder {more}: exit {done.returncode}\n{done.text[-1500:]}")
for line in (bad / "out" / "metrics.jsonl").read_text().splitlines():
    json.loads(line)
for arguments in (["tessera-report", bad / "out"], ["tessera-checkpoint", "inspect", bad / "out"], ["tessera-checkpoint", "export", bad / "out", bad / "exported"]):
    done = run(*arguments)
    check.that(done.returncode == 0, f"{arguments!a}: exit {done.returncode}\n{done.text[-500:]}")
folder.cleanup()
check.finish()
