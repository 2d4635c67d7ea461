# SPDX-License-Identifier: MIT
"""Who fails tells the others at once: before a slow unwinding, and when it leaves a Bootstrap by an exception.

  endings.py PROGRAM     (PROGRAM: ending_ranks)
"""
import re
import sys

from jobs import ended, fail, free_port, job

LIMIT_S = 1  # until every other rank has heard
program = sys.argv[1]


def when(text, what):
    found = re.search(rf"^{what} at ([0-9.]+)$", text, re.MULTILINE)
    return float(found.group(1)) if found else None


def run(how, bad, size=3):
    with job([program, how, str(bad)], size, free_port(), TESSERA_COLLECTIVE_TIMEOUT_S="60") as ranks:
        texts = [ended(rank, f"{how} of rank {bad}") for rank in ranks]
        return texts, [rank.returncode for rank in ranks]


for bad in (0, 1):
    texts, codes = run("slow", bad)
    everything = "\n".join(texts)
    failed = when(texts[bad], "failed")
    late = [when(text, "heard") - failed for rank, text in enumerate(texts) if rank != bad]
    print(f"rank {bad} fails and unwinds for 5 s: the others hear of it after {max(late):.3f} s; exit codes {codes}")
    if max(late) > LIMIT_S:
        fail("the others hear of a failure late", everything)
    if codes != [4] * 3:
        fail(f"the exit codes are {codes}", everything)
    if everything.count("this rank gives up") != 1 or "is caught" in everything:
        fail("the error is not said once", everything)

for bad in (0, 1):
    texts, codes = run("leave", bad)
    for rank, text in enumerate(texts):
        if rank != bad and f"rank {bad} was ended by an exception" not in text:
            fail(f"rank {rank} does not hear that an exception ended rank {bad}", "\n".join(texts))
    print(f"rank {bad} leaves its bootstrap by an exception: the others hear of it; exit codes {codes}")
