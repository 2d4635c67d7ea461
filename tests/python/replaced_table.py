# SPDX-License-Identifier: MIT
"""Writes the table of exported families: what became operators of tessera, what stayed and why, and packed rows beside padded ones.

Usage: replaced_table.py CHECKER OUTPUT DIRECTORY... The checker is the program exported_parity, DIRECTORY an exported family (export_families.py
--keep). OUTPUT is Markdown. Exit code 1 where a family differs.
"""
import pathlib
import re
import subprocess
import sys

FORM = re.compile(r": (replaced|not replaced) (\d+) (.+?) \((\w*), first ([^)]*)\): (.*)")
# Of most interest first.
KINDS = ("decoder layer", "expert layer", "joint product", "attention", "rms norm", "layer norm", "gated silu", "gelu (tanh)", "gelu", "linear", "embedding")
HEAD = """# Exported families: what is replaced

Written by `tests/python/replaced_table.py exported_parity OUTPUT DIRECTORY...` on {count} directories of `tests/python/export_families.py`, which are
tiny models. A number counts regions of the training program. "Packed" is the largest relative difference of the loss and of any gradient between
rows of 9, 2, 14 and 5 tokens end to end and the same rows padded; without a number the family takes no packed rows. "Layouts" is the largest
relative difference beside PyTorch (three steps of SGD) and beside one rank (zero2, zero3, fsdp, recomputed, offloaded, two stages).

| family | replaced | left, and why | packed | layouts |
|---|---|---|---|---|
"""


def one(kind):
    return next(known for known in KINDS if kind in (known, known + "s"))


def counts(regions):
    return ", ".join(f"{regions[kind]} {kind}{'' if regions[kind] == 1 else 's'}" for kind in KINDS if kind in regions)


def row(checker, directory):
    done = subprocess.run([checker, directory], capture_output=True, text=True, check=False)
    replaced, left = {}, []
    for sign, number, kind, module, _, text in FORM.findall(done.stderr):
        if sign == "replaced":
            replaced[one(kind)] = replaced.get(one(kind), 0) + int(number)
        else:
            reason = re.sub(r"^\S+: node \S+ \(\S+\): ", "", text)  # of an operator that failed in a proof
            if "is none of the program's inputs" in reason:
                reason = "its extent is no input's"
            line = f"{number} {kind} ({module}): {reason}"
            left += [] if line in left else [line]
    numbers = {name: float(value) for name, value in re.findall(r", ([^,]+) ([\d.e+-]+)(?=,|$)", done.stdout.strip())}
    packed = numbers.pop("packed beside padded", None)
    worst = f"{max(numbers.values()):.0e}" if done.returncode == 0 else "**" + done.stdout.strip().removeprefix(f"{directory}: ") + "**"
    cells = [directory.name, counts(replaced), "<br>".join(left), "" if packed is None else f"{packed:.0e}", worst]
    return done.returncode == 0, packed is not None, "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def main():
    checker, output, *directories = sys.argv[1:]
    rows = [row(checker, pathlib.Path(directory)) for directory in sorted(directories)]
    equal, packed = sum(good for good, _, _ in rows), sum(takes for _, takes, _ in rows)
    said = f"{equal} of {len(rows)} equal within 1e-5; {packed} take packed rows, equal to padded ones within 1e-5."
    pathlib.Path(output).write_text(HEAD.format(count=len(rows)) + "\n".join(text for _, _, text in rows) + "\n\n" + said + "\n")
    print(said)
    return 0 if equal == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
