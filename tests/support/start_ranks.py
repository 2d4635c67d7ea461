# SPDX-License-Identifier: MIT
"""Starts one process a rank with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_PORT set, and nothing else.

Usage: start_ranks.py N COMMAND... Exits with the largest exit code of the ranks; one that a signal ended counts as 0.
"""
import contextlib
import os
import pathlib
import random
import socket
import subprocess
import sys


def free_port():
    """A port that no other program gets meanwhile by asking for any: below those that the kernel gives away, if there are enough."""
    given_away = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(10000, given_away)
    for port in random.sample(candidates, min(100, len(candidates))) + [0]:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return s.getsockname()[1]


def main():
    ranks, command = int(sys.argv[1]), sys.argv[2:]
    port = free_port()
    jobs = [subprocess.Popen(command, env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(r),
                                           "LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)})
            for r in range(ranks)]
    codes = [job.wait() for job in jobs]
    print("exit codes by rank:", codes)
    sys.exit(max(0, *codes))


if __name__ == "__main__":
    main()
