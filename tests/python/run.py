# SPDX-License-Identifier: MIT
"""Installs the module into a fresh virtual environment and tests it there, beside the program on the same rows.

Usage: run.py SOURCE_ROOT BUILD_FOLDER CMAKE [MPIRUN]. The interpreter is one of the build's version, with NumPy. Where it has torch, too, the
module is tried beside that.
"""
import importlib.util
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

import numpy

ROOT, BUILD, CMAKE = (pathlib.Path(text).absolute() for text in sys.argv[1:4])
MPIRUN = sys.argv[4] if len(sys.argv) > 4 else ""
HERE = pathlib.Path(__file__).parent
LIMIT_S = 400  # only an upper bound: a hang fails the test
STEPS = 6
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("PYTHONPATH", None)
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_python_"))
failures = 0


def check(condition, what, text=""):
    global failures
    if not condition:
        failures += 1
        print(f"FAILED: {what}\n  " + text[-3000:].replace("\n", "\n  "))


def finished(processes):
    """Exit codes, and all that was said."""
    outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    return [process.returncode for process in processes], "".join(outputs)


def start(command, **environment):
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, **environment}, cwd=folder)


def alone(*command):
    return finished([start(command)])


def by_mpirun(*command):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return finished([start([MPIRUN, *root, "--oversubscribe", "--bind-to", "none", "-n", "2", *command])])


def by_environment(*command):
    """As torchrun's workers are told: two processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    return finished([start(command, RANK=str(rank), LOCAL_RANK=str(rank), **place) for rank in range(2)])


# A virtual environment that has the module, and sees the packages of this interpreter.
subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
python = folder / "venv/bin/python"
subprocess.run([CMAKE, "--install", BUILD, "--component", "python", "--prefix", folder / "venv"], check=True, stdout=subprocess.DEVNULL)
site = next((folder / "venv/lib").glob("python3*/site-packages"))
(site / "others.pth").write_text(str(pathlib.Path(numpy.__file__).parent.parent) + "\n")

# The script of docs/library/python.md, and the program, on the same rows.
script = folder / "train.py"
script.write_text(re.search(r"```python\n(.*?)```", (ROOT / "docs/library/python.md").read_text(), re.DOTALL).group(1))
check(len([line for line in script.read_text().splitlines() if line]) <= 25, "the script of docs/library/python.md has 25 lines at most")
rows = folder / "rows.jsonl"
random = numpy.random.default_rng(0)
rows.write_text("".join(json.dumps({"input_ids": random.integers(0, 500, 24).tolist()}) + "\n" for _ in range(40)))
ranks = by_mpirun if MPIRUN else by_environment
codes, said = ranks(python, script, rows, STEPS, folder / "out")
check(set(codes) == {0}, "the script of docs/library/python.md ends well on two ranks", said)
seen = [tuple(map(float, pair)) for pair in re.findall(r"loss (\S+) norm (\S+)", said)]
codes, said = ranks(BUILD / "bin/tessera-finetune-causal", "--model_config", "bloom-mini", "--train_ids", rows, "--shuffle", "false",
                    "--max_steps", STEPS, "--per_device_train_batch_size", "4", "--strategy", "zero2", "--seed", "42",
                    "--learning_rate", "1e-3", "--output_dir", folder / "program")
check(set(codes) == {0}, "the program ends well on two ranks", said)
events = [json.loads(line) for file in (folder / "program").glob("*.jsonl") for line in file.read_text().splitlines()]
wanted = [(event["loss"], event["grad_norm"]) for event in events if event["event"] == "step"]
check(len(seen) == STEPS and len(seen) == len(wanted), f"{STEPS} steps each: {len(seen)} and {len(wanted)}")
for mine, theirs in zip(seen, wanted):
    check(all(abs(a - b) <= 1e-6 * abs(b) for a, b in zip(mine, theirs)), f"loss and norm are the program's: {mine}, {theirs}")
weights = [(path / "model.safetensors").read_bytes() for path in (folder / "out/final", folder / "program/final")]
check(weights[0] == weights[1], "the exported weights are the program's, bit by bit")

# One process: what a Strategy does, and what it refuses.
codes, said = alone(python, HERE / "alone.py", folder / "out", rows)
check(codes == [0], "tests/python/alone.py", said)

# The programs go on from its checkpoint.
codes, said = alone(BUILD / "bin/tessera-finetune-causal", "--model_config", "bloom-mini", "--train_ids", rows, "--max_steps", STEPS + 1,
                    "--per_device_train_batch_size", "4", "--seed", "42", "--resume_from_checkpoint", folder / "out", "--output_dir", folder / "on")
check(codes == [0] and f"step {STEPS + 1}" in said, "the program goes on from the module's checkpoint", said)

# Other layouts.
codes, said = by_environment(python, HERE / "layouts.py")
check(set(codes) == {0}, "tests/python/layouts.py on two ranks", said)

# Weights, packed rows, adapters, losses of one's own.
codes, said = by_environment(python, HERE / "losses.py")
check(set(codes) == {0}, "tests/python/losses.py on two ranks", said)

# Beside torch.
if importlib.util.find_spec("torch"):
    for order in ("before", "after"):
        codes, said = alone(python, HERE / "with_torch.py", order)
        check(codes == [0], f"tests/python/with_torch.py {order}", said)
    if importlib.util.find_spec("safetensors"):
        for ranks in (alone, by_environment):
            codes, said = ranks(python, HERE / "own_modules.py")
            check(set(codes) == {0}, f"tests/python/own_modules.py on {len(codes)} ranks", said)
    else:
        print("there is no safetensors: own modules are not tried")
    if importlib.util.find_spec("transformers"):
        codes, said = alone(python, HERE / "examples_test.py", ROOT)
        check(codes == [0], "tests/python/examples_test.py", said)
    else:
        print("there is no transformers: examples/python is not tried")
else:
    print("there is no torch: not tried beside it")

# Two ranks, one of which fails: one line, all end.
for case, code, text in (("exception", 1, "ValueError: rank 1 has had enough (failing.py:"),
                         ("batch", 2, "rank 1: invalid argument: the batch: input_ids is of Float; it must be of integers"),
                         ("ends", 4, "rank 1"),
                         ("settings", 2, "the settings"),
                         ("weights", 2, "the weights"),
                         ("closes", 4, "rank 1"),
                         ("interrupt", 130, "interrupted: by Ctrl-C"),
                         ("interrupt_all", 130, "interrupted: by Ctrl-C"),
                         ("exit", 3, "sys.exit(3)")):
    begin = time.monotonic()
    codes, said = by_environment(python, HERE / "failing.py", case)
    took = time.monotonic() - begin
    lines = [line for line in said.splitlines() if line.startswith("E ")]
    check(set(codes) == {code} and len(lines) == 1 and text in lines[0], f"{case}: one line, exit {code}: {codes} after {took:.0f} s", said)
    own = case in ("exception", "interrupt", "interrupt_all")
    check(("Traceback" in said) == own, f"{case}: a traceback of the program's own exception only", said)

print("the module keeps its promises" if failures == 0 else f"{failures} checks failed")
sys.exit(1 if failures else 0)
