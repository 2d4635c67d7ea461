# SPDX-License-Identifier: MIT
"""Installs a wheel into a fresh virtual environment and uses what it brings: programs, module, CMake package; then removes it.

Usage: wheel.py SOURCE_ROOT WHEEL [--find-links FOLDER]
FOLDER: of wheels that are taken instead of the package index (scripts/offline.sh makes one). A C++ client is built where there are a
compiler and CMake. Runs on Python 3.10 and later, with nothing but its standard library.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile

parser = argparse.ArgumentParser()
parser.add_argument("root", type=pathlib.Path)
parser.add_argument("wheel", type=pathlib.Path)
parser.add_argument("--find-links", type=pathlib.Path)
options = parser.parse_args()
ROOT, WHEEL = options.root.absolute(), options.wheel.absolute()
SOURCE = ["--no-index", "--find-links", options.find_links.absolute()] if options.find_links else []
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_wheel_"))
venv = folder / "venv"
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if not name.startswith(("PYTHON", "TESSERA_", "LD_", "OMPI_", "SLURM_")) and name not in ("RANK", "WORLD_SIZE")}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "PATH": f"{venv}/bin:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
LIMIT_S = 900  # only an upper bound: a hang fails the test
failures = 0


def check(condition, what, text=""):
    global failures
    if not condition:
        failures += 1
        print(f"FAILED: {what}\n  " + text[-3000:].replace("\n", "\n  "), flush=True)


def run(*command, environment=None):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=environment or ENVIRONMENT, cwd=folder, timeout=LIMIT_S)
    return done.returncode, done.stdout


def must(what, *command, code=0, says="", environment=None):
    begin = time.monotonic()
    status, said = run(*command, environment=environment)
    check(status == code and re.search(says, said), f"{what}: exit {status}, expected {code} and '{says}'", said)
    print(f"{what}: {time.monotonic() - begin:.1f} s", flush=True)
    return said


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def files():
    return {path.relative_to(venv).as_posix() for path in venv.rglob("*") if not path.is_dir()}


def folders():
    return {path.relative_to(venv).as_posix() for path in venv.rglob("*") if path.is_dir()}


def older():
    """The same wheel as an older version, with a file that the newer one does not have."""
    name, version, *rest = WHEEL.name.split("-")
    path = folder / "-".join((name, "0.0.9", *rest))
    with zipfile.ZipFile(WHEEL) as source, zipfile.ZipFile(path, "w") as target:
        rows = []
        for item in source.infolist():
            data = source.read(item)
            if item.filename.endswith("RECORD"):
                continue
            item.filename = item.filename.replace(f"{name}-{version}.", f"{name}-0.0.9.")
            if item.filename.endswith("METADATA"):
                data = data.replace(f"\nVersion: {version}\n".encode(), b"\nVersion: 0.0.9\n", 1)
            target.writestr(item, data)
            rows.append(item.filename)
        target.writestr("tessera/of_before.py", "")
        target.writestr(f"{name}-0.0.9.dist-info/RECORD", "".join(f"{row},,\n" for row in [*rows, "tessera/of_before.py"]))
    return path


print(f"{WHEEL.name}: {WHEEL.stat().st_size / 1e6:.1f} MB, sha256 {hashlib.sha256(WHEEL.read_bytes()).hexdigest()[:16]}")
subprocess.run([sys.executable, "-m", "venv", venv], check=True)
python, pip = venv / "bin/python", [venv / "bin/python", "-m", "pip", "--disable-pip-version-check"]
with zipfile.ZipFile(WHEEL) as archive:
    metadata = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA"))
    names = archive.namelist()
check("\nName: tessera-train\n" in metadata, "the distribution is tessera-train", metadata)
check("\nRequires-Dist: torch==2.11.*\n" in metadata, "the wheel asks for torch==2.11.*", metadata)
for text in ("LICENSE", "NOTICE"):
    check(any(name.endswith("dist-info/licenses/" + text) for name in names), f"{text} is in the wheel")

# Without torch: a sentence.
must("install without what it needs", *pip, "install", "--quiet", "--no-deps", WHEEL)
said = must("a program without torch", "tessera-report", "--version", code=2, says=r"needs torch 2\.11.*pip install")
check(len(said.splitlines()) == 1, "that is one line", said)
said = must("the module without torch", python, "-c", "import tessera", code=1, says=r"ImportError: tessera needs torch 2\.11")
must("removed", *pip, "uninstall", "--quiet", "--yes", "tessera-train")

# What it needs, then itself: so that what it leaves can be told.
must("torch and NumPy", *pip, "install", "--quiet", *SOURCE, "torch==2.11.*", "numpy")
before, folders_before = files(), folders()
must("an older version", *pip, "install", "--quiet", "--no-deps", older())
check("of_before.py" in " ".join(files()), "the older version has its file")
must("install", *pip, "install", "--quiet", *SOURCE, WHEEL)
check("of_before.py" not in " ".join(files()), "an upgrade leaves nothing of before")
must("nothing is missing", *pip, "check")
check("cu1" in WHEEL.name or must("version", "tessera-finetune-squad", "--version", says=r"(?s)^tessera-finetune-squad \d+\.\d+\.\d+\n.*commit +\w.*LibTorch +2\.11.*CUDA +none\ntransports +local tcp\n"),
      "--version says so")
programs = sorted(path.name for path in (venv / "bin").glob("tessera-*"))
check(len(programs) == 13, f"13 programs: {programs}")
for name in programs:
    must(f"{name} --version", name, "--version", says=f"^{name} ")

# Programs: README's comparison, a training run of two ranks in each way of starting them.
# Their data come with the wheel, at the paths that the pages name.
share = pathlib.Path(must("--share", python, "-m", "tessera", "--share").strip())
for path in ("examples/data/tokenizer/tokenizer.json", "examples/data/classification_train.csv", "examples/data/chats_train.jsonl", "examples/data/tiny_qwen.sh", "examples/compare/demo.json", "examples/own_model/own_model.cpp",
             "examples/loops/program.h", "examples/slurm/requeue.sbatch", "scripts/parquet_to_jsonl.py", "scripts/send_metrics.py"):
    check((share / path).exists(), f"{path} is in the wheel")
must("usage of python -m tessera", python, "-m", "tessera", code=2, says="--share")
DATA = ["--tokenizer", share / "examples/data/tokenizer", "--train_file", share / "examples/data/squad_sample.json"]
TINY = ["--model_config", "bloom-mini", *DATA, "--max_seq_length", "64", "--per_device_train_batch_size", "2", "--seed", "7"]
said = must("tessera-compare", "tessera-compare", "--model_config", "bloom-mini", *DATA, "--max_steps", "3", "--rank_counts", "2", "--global_batch_size", "4", "--per_device_train_batch_size", "2",
            "--max_seq_length", "64", "--output_dir", folder / "compare")
check((folder / "compare/compare.json").exists(), "tessera-compare wrote compare.json", said)
train = ["tessera-finetune-squad", *TINY, "--max_steps", "3"]
must("two threads", *train, "--ranks", "2", "--strategy", "zero2", "--output_dir", folder / "threads")


def losses(name):
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["event"] == "step"]


def same(name):
    check(losses(name) == losses("threads"), f"{name} gives the losses of the threads: {losses(name)}, {losses('threads')}")


if (torchrun := venv / "bin/torchrun").exists():
    must("torchrun", torchrun, "--nproc_per_node", "2", "--master_port", free_port(), "--no_python", *train, "--strategy", "zero2",
         "--output_dir", folder / "torchrun")
    same("torchrun")
    # tessera-compare finds it beside its Python, although this environment is not active.
    must("tessera-compare under torchrun", venv / "bin/tessera-compare", *TINY, "--max_steps", "3", "--strategies", "zero2", "--rank_counts", "2", "--reference",
         "false", "--launcher", "torchrun", "--output_dir", folder / "by_torchrun", says="zero2-2: ", environment=ENVIRONMENT | {"PATH": os.environ["PATH"]})
if mpirun := shutil.which("mpirun"):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    must("mpirun", mpirun, *root, "--oversubscribe", "-n", "2", *train, "--strategy", "zero2", "--output_dir", folder / "mpirun")
    same("mpirun")
must("tessera-report", "tessera-report", folder / "threads", folder / "compare", "--output", folder / "report.html")
must("an unknown flag is usage", *train, "--strategi", "ddp", code=2, says="--strategy")

# The process that was started is the program: signals reach it, and its status is the caller's.
long = subprocess.Popen([str(word) for word in (*train[:-2], "--max_steps", "100000", "--output_dir", folder / "long", "--save_strategy", "no")],
                        env=ENVIRONMENT, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # which a shell's background jobs ignore
deadline = time.monotonic() + 120
while not (folder / "long/metrics.jsonl").exists() and time.monotonic() < deadline and long.poll() is None:
    time.sleep(0.1)
if long.poll() is None:
    check(os.readlink(f"/proc/{long.pid}/exe").endswith("/tessera/bin/tessera-finetune-squad"), "the process became the program")
    long.send_signal(signal.SIGINT)
said = long.communicate(timeout=120)[0]
check(long.returncode == 130, f"Ctrl-C reaches it: exit {long.returncode}", said)

# Another torch.
other = folder / "other/torch"
(other / "lib").mkdir(parents=True)
(other / "lib/libtorch_cpu.so").touch()
(other / "__init__.py").touch()
(other / "version.py").write_text("__version__ = '2.10.0+cu128'\n")
wrong = ENVIRONMENT | {"PYTHONPATH": str(other.parent)}
said = must("a program with another torch", *train, code=2, says=r"built with LibTorch 2\.11.*has torch 2\.10\.0", environment=wrong)
check(len(said.splitlines()) == 1, "that is one line", said)
must("the module with another torch", python, "-c", "import tessera", code=1, says=r"ImportError: .*built with LibTorch 2\.11.*torch 2\.10\.0", environment=wrong)

# The module: a step, its losses beside torch's own import, in both orders.
(folder / "step.py").write_text("""
import sys
if sys.argv[1] == "before": import torch
import numpy, tessera
if sys.argv[1] == "after": import torch
ids = numpy.arange(32).reshape(2, 16)
with tessera.Job() as job:
    strategy = tessera.Strategy(job, tessera.Model.from_config("bloom-mini"), strategy="zero2", seed=1)
    for _ in range(2):
        loss = strategy.forward_backward({"input_ids": ids, "labels": ids}).loss
        strategy.clip(1.0)
        strategy.optimizer_step(1e-3)
    print("loss", loss, float(torch.ones(3).sum()))
""")
for order in ("before", "after"):
    must(f"the module, import torch {order} it", python, folder / "step.py", order, says=r"loss \d.* 3\.0")
must("python -m tessera --version", python, "-m", "tessera", "--version", says="^tessera ")

# C++ clients.
prefix = must("--cmake-prefix", python, "-m", "tessera", "--cmake-prefix").strip()
if shutil.which("cmake") and shutil.which("c++"):
    for way in ([], ["-DSHARED=ON"]):
        build = folder / ("client" + "_shared" * bool(way))
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        must("cmake", "cmake", "-S", ROOT / "tests/package/client", "-B", build, *generator, "-DWAY=find_package", "-DPOLICIES=3.16",
             f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_CXX_FLAGS=-O0", *way)
        must("cmake --build", "cmake", "--build", build)
        must("the client", build / "client")
else:
    print("no compiler or no CMake: no C++ client was built")

# Completions.
for path in ("share/bash-completion/completions/tessera-finetune-squad", "share/zsh/site-functions/_tessera-finetune-squad"):
    check((venv / path).exists() and "--strategy" in (venv / path).read_text(), f"{path} knows --strategy")

must("uninstall", *pip, "uninstall", "--quiet", "--yes", "tessera-train")
left = sorted(files() - before) + sorted(folders() - folders_before)
check(not left, f"uninstalling leaves nothing: {left[:20]}")
check(not before - files(), f"and takes nothing else: {sorted(before - files())[:20]}")
shutil.rmtree(folder)
print(f"the wheel keeps its promises on Python {sys.version_info[0]}.{sys.version_info[1]}" if failures == 0 else f"{failures} checks failed")
sys.exit(1 if failures else 0)
