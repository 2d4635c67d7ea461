"""Starts one process a rank with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_PORT set, and nothing else.

Usage: start_ranks.py N COMMAND... Exits with the largest exit code of the ranks; one that a signal ended counts as 0.
"""
import os
import socket
import subprocess
import sys


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
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
