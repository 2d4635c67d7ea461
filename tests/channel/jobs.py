# SPDX-License-Identifier: MIT
"""Jobs of conformance_processes over TCP, started by hand, for the tests of this folder."""
import argparse
import contextlib
import os
import pathlib
import re
import select
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from start_ranks import free_port  # noqa: E402,F401

LAUNCHERS = re.compile(r"^(OMPI_|PMIX?_|SLURM_|MPI_LOCAL|TORCHELASTIC_|TESSERA_|MASTER_|(LOCAL_)?(RANK|WORLD_SIZE)$)")
PATIENCE_S = 60  # for what takes a second on a quiet host


def command_line(*places, **options):
    """The program's arguments: these by place, and --options with their defaults; False is a switch."""
    parser = argparse.ArgumentParser()
    for name in places:
        parser.add_argument(name)
    for name, default in options.items():
        how = {"action": "store_true"} if default is False else {"type": type(default), "default": default}
        parser.add_argument("--" + name, **how)
    return parser.parse_args()


def fail(what, text=""):
    sys.exit(f"FAILED: {what}\n  " + text[-3000:].replace("\n", "\n  "))


def start(command, rank, size, port, prefix=(), **variables):
    clean = {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)}
    return subprocess.Popen([*prefix, *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={
        **clean, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_PORT": str(port), **variables})


@contextlib.contextmanager
def job(command, size, port, **variables):
    """All ranks of a job; none outlives the block."""
    ranks = [start(command, r, size, port, **variables) for r in range(size)]
    try:
        yield ranks
    finally:
        end(ranks)


def end(ranks):
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
        rank.communicate()


def wait_for_line(rank, text):
    """Reads the rank's output up to this text."""
    deadline, seen = time.monotonic() + PATIENCE_S, ""
    while text not in seen:
        ready = select.select([rank.stdout], [], [], max(0, deadline - time.monotonic()))[0]
        piece = os.read(rank.stdout.fileno(), 4096).decode() if ready else ""
        if not piece:
            fail(f"'{text}' was not said", seen)
        seen += piece


def ended(rank, what):
    """The output of a rank that must end soon."""
    try:
        return rank.communicate(timeout=PATIENCE_S)[0]
    except subprocess.TimeoutExpired:
        fail(f"{what}: a rank does not end")
