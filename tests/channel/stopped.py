# SPDX-License-Identifier: MIT
"""Stops each rank in turn: all others name it and end with exit code 5, and the stopped one ends when it goes on.

  stopped.py PROGRAM [--ranks N] [--limit S]     (PROGRAM: conformance_processes)
"""
import re
import signal
import time

from jobs import command_line, ended, fail, free_port, job, wait_for_line

arguments = command_line("program", ranks=3, limit=1.0)

for victim in range(arguments.ranks):
    with job([arguments.program, "tcp", "idle"], arguments.ranks, free_port(), TESSERA_HEARTBEAT_TIMEOUT_S=str(arguments.limit)) as ranks:
        wait_for_line(ranks[0], "are here")
        begin = time.monotonic()
        ranks[victim].send_signal(signal.SIGSTOP)
        for number, rank in enumerate(ranks):
            if number == victim:
                continue
            text = ended(rank, f"rank {victim} is stopped")
            if rank.returncode != 5:
                fail(f"rank {victim} is stopped: rank {number} ends with {rank.returncode}", text)
            if not re.search(rf"rank {victim} \(host [^)]*\) has been silent since .*(barrier|exchange)\(\) \(call \d+ of [^)]*\), step 0, start", text):
                fail(f"rank {number} does not name the stopped rank {victim} and what it waits in", text)
        took = time.monotonic() - begin
        ranks[victim].send_signal(signal.SIGCONT)
        text = ended(ranks[victim], f"rank {victim} goes on")
        if ranks[victim].returncode != 5:
            fail(f"rank {victim} was stopped and ends with {ranks[victim].returncode}", text)
        print(f"rank {victim} of {arguments.ranks} stopped: the others ended within {took:.1f} s")
