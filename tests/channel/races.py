# SPDX-License-Identifier: MIT
"""Two jobs of two ranks started at once on one port, in two folders: every rank ends, who was refused says why, and no rank of one runs
with one of the other.

  races.py PROGRAM [--times N]     (PROGRAM: conformance_processes)
"""
import os

from jobs import command_line, ended, fail, free_port, job

arguments = command_line("program", times=1)

whole = refused = 0
for _ in range(arguments.times):
    port, command = free_port(), [os.path.abspath(arguments.program), "tcp", "meet"]
    elsewhere = ["env", "-C", "/"]  # is replaced by the command
    with job(command, 2, port, TESSERA_RENDEZVOUS_TIMEOUT_S="4") as first, job(elsewhere + command, 2, port, TESSERA_RENDEZVOUS_TIMEOUT_S="4") as second:
        ranks = [*first, *second]
        texts = [ended(rank, "two jobs on one port") for rank in ranks]
        codes = [rank.returncode for rank in ranks]
    if not set(codes) <= {0, 2, 5} or any((codes[r] == 0) != (codes[r + 1] == 0) for r in (0, 2)):
        fail(f"two jobs on one port end with {codes}", "\n".join(texts))
    for code, text in zip(codes, texts):
        if code != 0 and not any(piece in text for piece in ("MASTER_PORT", "did not connect", "did not find")):
            fail(f"a refused rank does not say why; codes {codes}", "\n".join(texts))
    whole += codes.count(0) > 0
    refused += codes.count(0) == 0
print(f"{arguments.times} times two jobs on one port: {whole} times one of them ran (or both in turn), {refused} times both were refused; none hung")
