# SPDX-License-Identifier: MIT
"""Two network namespaces as two hosts with two ranks each; the link between them is cut: both sides end in bounded time and name the other.

  partition.py PROGRAM [--limit S]     (PROGRAM: conformance_processes; needs root, else the test is skipped)
"""
import os
import shutil
import subprocess
import sys
import time

from jobs import command_line, end, ended, fail, start, wait_for_line

arguments = command_line("program", limit=2.0)
SKIPPED = 77
HOSTS = [f"tessera-{os.getpid()}-{side}" for side in "ab"]


def ip(*words):
    subprocess.run(["ip", *words], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def link():
    for host in HOSTS:
        ip("netns", "add", host)
    ip("-n", HOSTS[0], "link", "add", "name", "eth1", "type", "veth", "peer", "name", "eth1", "netns", HOSTS[1])
    for number, host in enumerate(HOSTS):
        ip("-n", host, "link", "set", "lo", "up")
        ip("-n", host, "addr", "add", f"10.99.0.{number + 1}/24", "dev", "eth1")
        ip("-n", host, "link", "set", "eth1", "up")


if not shutil.which("ip"):
    print("no network namespaces can be made here: no program ip (iproute2)")
    sys.exit(SKIPPED)
ranks = []
try:
    try:
        link()
    except subprocess.CalledProcessError as error:
        print(f"no network namespaces can be made here: {error}")
        sys.exit(SKIPPED)
    ranks = [start([arguments.program, "tcp", "idle"], r, 4, 29500, ["ip", "netns", "exec", HOSTS[r // 2]], MASTER_ADDR="10.99.0.1", LOCAL_RANK=str(r % 2),
                   LOCAL_WORLD_SIZE="2", TESSERA_JOB_SECRET="of this test", TESSERA_HEARTBEAT_TIMEOUT_S=str(arguments.limit)) for r in range(4)]
    wait_for_line(ranks[0], "are here")
    ip("-n", HOSTS[0], "link", "set", "eth1", "down")
    begin = time.monotonic()
    for number, rank in enumerate(ranks):
        text = ended(rank, "the link is cut")
        if rank.returncode != 5:
            fail(f"the link is cut: rank {number} ends with {rank.returncode}", text)
        # Of the side that rank 0 is on one rank reports for both.
        if number != 1 and ("has been silent since" not in text or ("rank 0 (host" if number > 1 else "(host ") not in text):
            fail(f"rank {number} does not name who is cut off", text)
    print(f"the link between two hosts was cut: all four ranks ended within {time.monotonic() - begin:.1f} s")
finally:
    end(ranks)
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], check=False, stderr=subprocess.DEVNULL)
