# SPDX-License-Identifier: MIT
"""Wrong variables of launchers: every rank ends within 10 s with the documented exit code and a line that names place and remedy.

Usage: bad_input.py PROGRAM (conformance_processes).
"""
import contextlib
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from start_ranks import free_port  # noqa: E402

PROGRAM = sys.argv[1]
USAGE, PEER = 2, 5
TIME_LIMIT_S = 10
LAUNCHERS = re.compile(r"^(OMPI_|PMIX?_|SLURM_|MPI_LOCAL|TORCHELASTIC_|TESSERA_|MASTER_|(LOCAL_)?(RANK|WORLD_SIZE)$)")
checks = failures = 0


def check(condition, what, text=""):
    global checks, failures
    checks += 1
    if not condition:
        failures += 1
        print(f"FAILED: {what}\n  " + text[-3000:].replace("\n", "\n  "))


def start(variables, how=()):
    clean = {k: v for k, v in os.environ.items() if not LAUNCHERS.match(k)}
    return subprocess.Popen([PROGRAM, "tcp", *how], env={**clean, "OMP_NUM_THREADS": "1", **variables}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def refused(what, ranks, pieces, code=USAGE, each_says=True):
    """ranks: the variables of each. pieces: what the message must hold, on each rank or on one of them."""
    begin = time.monotonic()
    jobs = [start(variables) for variables in ranks]
    texts = []
    for rank, job in enumerate(jobs):
        try:
            texts.append(job.communicate(timeout=6 * TIME_LIMIT_S)[0])
        except subprocess.TimeoutExpired:
            job.kill()
            texts.append(job.communicate()[0])
        check(job.returncode == code, f"{what}: rank {rank} ends with {job.returncode}, expected {code}", texts[-1])
    took, startup_s = time.monotonic() - begin, 0.0
    if took >= TIME_LIMIT_S:  # others have the host, maybe: what do processes take now that end at once?
        begin = time.monotonic()
        for job in [start({"RANK": "0"}) for _ in ranks]:
            job.communicate()
        startup_s = time.monotonic() - begin
    check(took - startup_s < TIME_LIMIT_S, f"{what}: took {took:.1f} s, {startup_s:.1f} s of it to start processes")
    for text in texts if each_says else ["".join(texts)]:
        for piece in pieces:
            check(piece in text, f"{what}: says '{piece}'", text)
        errors = [line for line in text.splitlines() if line.startswith("E ")]
        check(len(errors) == 1, f"{what}: one line of error, not {len(errors)}", text)


@contextlib.contextmanager
def taken_port(answer=None):
    """A port that another program listens at: silent, or saying something else to all who call."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    caller = listener.accept()[0]
                    callers.append(caller)
                    if answer:
                        caller.sendall(answer)
        callers = []
        threading.Thread(target=serve, daemon=True).start()
        yield str(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def by_hand(rank, size=2, **more):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), **more}


refused("half-set", [{"RANK": "0"}], ["WORLD_SIZE is not set"])
refused("a heartbeat that is no number", [by_hand(r, MASTER_PORT="29500", TESSERA_HEARTBEAT_TIMEOUT_S="soon") for r in range(2)],
        ["TESSERA_HEARTBEAT_TIMEOUT_S=soon"])
refused("no port", [by_hand(r) for r in range(2)], ["MASTER_PORT is not set"])
refused("an unknown launcher", [{"PMIX_RANK": "0"}], ["PMIX_RANK=0", "RANK, WORLD_SIZE"])
refused("an unknown host", [by_hand(r, MASTER_ADDR="no-such-host.invalid", MASTER_PORT="29500", TESSERA_JOB_SECRET="x")
                            for r in range(2)], ["no-such-host.invalid", "MASTER_ADDR"])
refused("hosts without a secret", [by_hand(r, MASTER_ADDR="192.0.2.1", MASTER_PORT="29500") for r in range(2)],
        ["TESSERA_JOB_SECRET"])
for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", None):
    with taken_port(answer) as port:
        refused("a port that is taken", [by_hand(r, MASTER_PORT=port) for r in range(2)], ["choose another MASTER_PORT"])

port = str(free_port())
refused("secrets that differ", [by_hand(r, 3, MASTER_PORT=port, TESSERA_JOB_SECRET="b" if r == 1 else "a", TESSERA_RENDEZVOUS_TIMEOUT_S="5")
                                for r in range(3)], ["job secret", "rank 1", "TESSERA_JOB_SECRET"])
port = str(free_port())
refused("world sizes that differ", [by_hand(0, 3, MASTER_PORT=port), by_hand(1, 2, MASTER_PORT=port)],
        ["world size"])

step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
refused("RANK exported in a batch script", [{**step, "SLURM_PROCID": str(r), "SLURM_LOCALID": str(r), **by_hand(0)} for r in range(2)],
        ["RANK=0 against SLURM_PROCID=1", "unset RANK and WORLD_SIZE"], each_says=False)

# A second job at the port of one that runs: told so, and the first goes on.
port = str(free_port())
first = [start(by_hand(r, MASTER_PORT=port), ["idle"]) for r in range(2)]
line = first[0].stdout.readline()
check("all 2 ranks are here" in line, "the first job runs", line)
refused("two jobs on one port", [by_hand(r, MASTER_PORT=port) for r in range(2)], ["choose another MASTER_PORT"])
check(all(job.poll() is None for job in first), "the first job still runs")
for job in first:
    job.kill()
    job.communicate()

print(f"{checks - failures} of {checks} checks passed")
sys.exit(1 if failures else 0)
