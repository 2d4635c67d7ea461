# SPDX-License-Identifier: MIT
"""Every numeric flag at the bounds of its range: a dry run succeeds, or says in one line what else is wrong. Beyond them, and for what is no number, exit
code 2 with the range.

Usage: ranges.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import concurrent.futures
import json
import pathlib
import re
import subprocess
import tempfile

from support import BIN, DATA, Checker

check = Checker()
folder = tempfile.TemporaryDirectory(prefix="tessera_ranges_")
chats = pathlib.Path(folder.name) / "chats.jsonl"
chats.write_text('{"prompt": "Hi", "completion": "Ho"}\n' * 8)
BASE = {"tessera-finetune-squad": ["--train_file", DATA / "squad_sample.json"],
        "tessera-finetune-classification": ["--train_file", DATA / "classification_train.csv"],
        "tessera-finetune-chat": ["--train_file", chats, "--chat_template", "chatml"]}
COMMON = ["--model_config", "bloom-tiny", "--tokenizer", DATA / "tokenizer", "--dry_run"]
LIMIT = r"(2\^\d+|[-+.e0-9]+)"


def run(program, *arguments):
    done = subprocess.run([BIN / program, *arguments], capture_output=True, text=True, errors="replace", timeout=300,
                          env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"})
    return done.returncode, done.stdout + done.stderr


def number(text):
    return 2 ** int(text[2:]) if text.startswith("2^") else float(text) if re.search(r"[.e]", text) else int(text)


def facts(program, name):
    text = re.sub(r"\s+", " ", run(program, "--help", name)[1])
    low = re.search(f"Values: (at least|above) {LIMIT}", text)
    high = re.search(f"Values: .*? and (at most|below) {LIMIT}", text)
    check.that(low and high, f"{program} --help {name} says its range:\n{text}")
    return (low.group(1), number(low.group(2)), high.group(1), number(high.group(2))) if low and high else None


def tries(program, name, whole):
    """Values, and whether they are within the range."""
    bounds = facts(program, name)
    if bounds is None:
        return []
    below, low, above, high = bounds
    last = [high - 1] if whole else [high * (1 - 1e-15)]
    return ([(low, below == "at least"), (low - 1, False), (high, above == "at most")] + [(high * 2 + 1, False)] + [(v, True) for v in last]
            + [(text, False) for text in ("nan", "inf", "-inf", "1e400")])


def one(program, name, value, within):
    code, text = run(program, *BASE[program], *COMMON, f"--{name}={value!r}" if not isinstance(value, str) else f"--{name}={value}")
    lines = [line for line in text.splitlines() if line.startswith("E ")]
    what = f"{program} --{name} {value}: exit {code}\n{text[-800:]}"
    if within:  # the range is right; another setting, the data or the memory may not be
        return code in (0, 2, 3, 4) and (code == 0) == (not lines) and not any("it must be at" in line or "it must be above" in line for line in lines), what
    return code == 2 and len(lines) == 1 and f"--{name}" in lines[0] and re.search("at least|above", lines[0]) and re.search("at most|below", lines[0]), what


work, done_names = [], set()
for program in BASE:
    code, text = run(program, "--print_config")
    config = json.loads(text)
    for name, flag in config.items():
        value = flag["value"]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if name in done_names:
            continue
        work += [(program, name, *case) for case in tries(program, name, isinstance(value, int))]
    done_names |= set(config)
check.that(len(work) > 300, f"{len(work)} runs")
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for good, what in pool.map(lambda case: one(*case), work):
        check.that(good, what)
check.finish()
