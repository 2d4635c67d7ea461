# SPDX-License-Identifier: MIT
"""Planted violations: each must be found, and nothing else."""


def check(cases):
    """The exit status for (name, violations found, a piece of the only message or None for no message) of all cases."""
    failed = 0
    for name, found, expected in cases:
        good = (not found) if expected is None else (len(found) == 1 and expected in found[0])
        if not good:
            failed += 1
            print(f"{name}: expected {expected!r}, found {found}")
    print(f"{len(cases) - failed} of {len(cases)} cases as expected")
    return 1 if failed else 0
