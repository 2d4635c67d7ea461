#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The GPU tests of a build on a host that has the GPUs but not the build.

  scripts/gpu_tests.py pack BUILD OUT   programs of the ctest entries labelled gpu, their libraries and scripts, and this file as OUT/run
  OUT/run [--limit S] [--gpus N] [--share] [--list] [PATTERN...]

run gives every entry GPUs of its own and runs as many at once as there are GPUs, entries that may take long first. PATTERN: a part of an
entry's name. --share: entries of more GPUs than there are run, too, with ranks that share a GPU; times and memory of some are others then.
--limit: seconds, after which what has not ended is stopped and named; entries that may take long come last then. The host needs Python with the build's version of
torch, or TESSERA_TORCH_ROOT, and mpirun. Output is kept in OUT/logs. Exit status: 0, or 1 when an entry failed or did not end.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

SKIPPED = 77
# What a host with LibTorch, CUDA, NCCL and Open MPI has, or must have of its own.
OF_HOST = re.compile(r"^lib(torch|c10|shm|nccl|cudnn|cublas|cudart|cuda|cufft|curand|cusparse|cusolver|cufile|cupti|nv|mpi|open-|pmix|event|hwloc|gomp|stdc\+\+|gcc_s|m|c|dl|"
                     r"rt|pthread|util|z|udev)[-._0-9a-zA-Z]*\.so|^ld-linux")


def shared_libraries(program):
    for line in subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout.splitlines():
        found = re.match(r"\s*(\S+) => (/\S+)", line)
        if found and not OF_HOST.match(found[1]):
            yield pathlib.Path(found[2])


def pack(build, out):
    build, out, source = pathlib.Path(build).resolve(), pathlib.Path(out).resolve(), pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(["ctest", "--test-dir", build, "-L", "^gpu$", "--show-only=json-v1"], capture_output=True, text=True, check=True)
    entries, programs, scripts = [], set(), set()
    for test in json.loads(listed.stdout)["tests"]:
        if "command" not in test:
            sys.exit(f"gpu_tests: {test['name']} is not built; build all targets of {build} first")
        properties = {p["name"]: p["value"] for p in test["properties"]}
        command, gpus = [], 1
        for word in test["command"]:
            path = pathlib.Path(word)
            if path.is_absolute() and path.parent == build / "bin":
                programs.add(path)
                word = f"{{here}}/bin/{path.name}"
            elif path == build / "bin":
                word = "{here}/bin"
            elif path == source:
                word = "{here}"
            elif path.is_absolute() and source in path.parents:
                scripts.add(path.relative_to(source).parts[0])
                word = f"{{here}}/{path.relative_to(source)}"
            elif path.is_absolute() and path.name.startswith("python"):
                word = "python3"
            elif path.is_absolute() and path.name in ("mpirun", "mpiexec", "orterun"):
                word = "mpirun"
            command.append(word)
        if "needs_gpus" in command[0]:
            gpus, command = int(command[1]), command[2:]
        entries.append({"name": test["name"], "command": command, "gpus": gpus, "timeout": properties.get("TIMEOUT", 300),
                        "environment": dict(e.split("=", 1) for e in properties.get("ENVIRONMENT", []) if e)})
    missing = sorted(program.name for program in programs if not program.exists())
    if missing:
        sys.exit(f"gpu_tests: not built: {' '.join(missing)}")
    if "stopped_training_nccl" in {e["name"] for e in entries}:
        programs.add(build / "bin/tessera-finetune-squad")
    (out / "bin").mkdir(parents=True, exist_ok=True)
    (out / "lib").mkdir(exist_ok=True)
    for program in programs:
        shutil.copy2(program, out / "bin")
        subprocess.run(["strip", "--strip-debug", out / "bin" / program.name], check=False)
        for library in shared_libraries(program):
            shutil.copy2(library.resolve(), out / "lib" / library.name)
    for folder in scripts | {"examples"}:
        shutil.copytree(source / folder, out / folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.patch", "*.cpp", "*.h", "__pycache__"))
    (out / "entries.json").write_text(json.dumps(entries, indent=1))
    shutil.copy2(__file__, out / "run")
    (out / "run").chmod(0o755)
    print(f"{len(entries)} entries, {len(programs)} programs in {out}")


def environment_of_host(here):
    root = os.environ.get("TESSERA_TORCH_ROOT")
    if not root:
        asked = subprocess.run(["python3", "-c", "import os, torch; print(os.path.dirname(torch.__file__))"], capture_output=True, text=True, check=False)
        root = asked.stdout.strip()
    folders = [here / "lib"]
    if root:
        folders += [pathlib.Path(root, "lib"), *sorted(pathlib.Path(root).parent.glob("nvidia/*/lib"))]
    path = ":".join([*map(str, folders), "/usr/local/cuda/lib64", os.environ.get("LD_LIBRARY_PATH", "")])
    # Else the ranks of every job would be bound to the same cores.
    return {**os.environ, "LD_LIBRARY_PATH": path, "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def stop(process):
    """Ranks are no part of mpirun's process group: it ends them when it is asked to end."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Runner:
    """GPUs are handed out under one lock; an entry that wants several begins before smaller ones do."""

    def __init__(self, here, entries, gpus, limit):
        self.here, self.limit, self.begin = here, limit, time.monotonic()
        # Short entries of one GPU are many: they fill what the long ones leave. Within a limit as many as can be are to end.
        self.waiting = sorted(entries, key=lambda e: (-e["gpus"], -e["timeout"]) if limit is None else (e["timeout"], -e["gpus"]))
        self.free = set(range(gpus))
        self.changed, self.results = threading.Condition(), {}
        self.environment = environment_of_host(here)
        (here / "logs").mkdir(exist_ok=True)

    def left(self):
        return float("inf") if self.limit is None else self.limit - (time.monotonic() - self.begin)

    def run(self):
        threads = []
        with self.changed:
            while self.waiting:
                entry = next((e for e in self.waiting if e["gpus"] <= len(self.free)), None)
                if entry is None:
                    self.changed.wait()
                    continue
                self.waiting.remove(entry)
                mine = sorted(self.free)[:entry["gpus"]]
                self.free -= set(mine)
                threads.append(threading.Thread(target=self.one, args=(entry, mine)))
                threads[-1].start()
        for thread in threads:
            thread.join()
        return self.results

    def one(self, entry, mine):
        begin, seconds = time.monotonic(), min(entry["timeout"], self.left())
        result = "not run"
        if seconds > 1:
            command = [word.replace("{here}", str(self.here)) for word in entry["command"]]
            log = self.here / "logs" / (re.sub(r"[^-_.a-zA-Z0-9]+", "_", entry["name"])[:100] + ".txt")
            with log.open("w") as output:
                process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=self.here, start_new_session=True,
                                           env={**self.environment, **entry["environment"], "CUDA_VISIBLE_DEVICES": ",".join(map(str, mine))})
                try:
                    status = process.wait(seconds)
                    result = {0: "passed", SKIPPED: "skipped"}.get(status, f"failed ({status})")
                except subprocess.TimeoutExpired:
                    stop(process)
                    result = f"stopped after {seconds:.0f} s"
            if result == "passed" and "skipped: this test needs" in log.read_text(errors="replace"):
                result = "skipped"
        took = time.monotonic() - begin
        print(f"{result:20} {took:6.1f} s  {entry['name']}", flush=True)
        with self.changed:
            self.results[entry["name"]] = result
            self.free |= set(mine)
            self.changed.notify_all()


def count_gpus():
    asked = shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return len(asked.stdout.splitlines()) if asked else 0


def run(here, arguments):
    parser = argparse.ArgumentParser(description="GPU tests of a packed build")
    parser.add_argument("--limit", type=float)
    parser.add_argument("--gpus", type=int, default=count_gpus())
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("patterns", nargs="*")
    o = parser.parse_args(arguments)
    entries = [e for e in json.loads((here / "entries.json").read_text()) if not o.patterns or any(p in e["name"] for p in o.patterns)]
    if not entries:
        sys.exit(f"gpu_tests: no entry's name has {' or '.join(o.patterns)} in it; --list names them")
    if o.list:
        for e in entries:
            print(f"{e['gpus']} GPUs  {e['name']}")
        return 0
    if o.gpus < 1:
        sys.exit("gpu_tests: nvidia-smi shows no GPU")
    for e in entries:
        if o.share and e["gpus"] > o.gpus:
            e["gpus"] = o.gpus
            e["environment"]["TESSERA_SHARE_GPUS"] = "1"
    too_large = [e for e in entries if e["gpus"] > o.gpus]
    results = Runner(here, [e for e in entries if e["gpus"] <= o.gpus], o.gpus, o.limit).run()
    bad = [f"{result}: {name}" for name, result in results.items() if result not in ("passed", "skipped")]
    passed = sum(result == "passed" for result in results.values())
    print(f"{passed} passed, {sum(r == 'skipped' for r in results.values())} skipped, {len(bad)} not passed, {len(too_large)} need more GPUs")
    for line in bad:
        print(f"  {line}")
    return 1 if bad else 0


def main():
    here = pathlib.Path(__file__).resolve().parent
    if (here / "entries.json").exists():
        return run(here, sys.argv[1:])
    if len(sys.argv) != 4 or sys.argv[1] != "pack":
        print(__doc__, file=sys.stderr)
        return 2
    pack(sys.argv[2], sys.argv[3])
    return 0


if __name__ == "__main__":
    sys.exit(main())
