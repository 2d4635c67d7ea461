# SPDX-License-Identifier: MIT
"""ports.py ROOT BUILD MPIRUN: examples/port differ in few lines, docs/library/porting.md shows them, and all three programs train the same."""
import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

root, build, mpirun = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3]
TOLERANCE = 1e-5


def changes(before: str, after: str) -> list[str]:
    texts = [(root / "examples/port" / f"{name}.cpp").read_text().splitlines() for name in (before, after)]
    lines = difflib.unified_diff(*texts, n=0, lineterm="")
    return [line for line in list(lines)[2:] if not line.startswith("@@") and line != "+"]


def run(name: str, ranks: int) -> list[float]:
    command = [build / name]
    if ranks > 1:
        command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *command]
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert made.returncode == 0, f"{name} on {ranks}: exit {made.returncode}\n{made.stdout}{made.stderr}"
        assert (pathlib.Path(folder) / "net.pt").stat().st_size > 0
    found = re.findall(r"loss (\S+) accuracy (\S+)", made.stdout)
    assert len(found) == 1, f"{name} on {ranks} printed:\n{made.stdout}"
    return [float(number) for number in found[0]]


page = (root / "docs/library/porting.md").read_text()
shown = [block.splitlines() for block in re.findall(r"```diff\n(.*?)\n```", page, re.S)]
for pair, block, most in ((("plain", "ddp"), shown[0], 8), (("ddp", "zero3"), shown[1], 2)):
    lines = changes(*pair)
    assert sorted(lines) == sorted(block), f"docs/library/porting.md does not show {pair}:\n" + "\n".join(lines)
    added = sum(line.startswith("+") for line in lines)
    assert added <= most, f"{pair}: {added} changed lines, more than {most}"
    print(f"{pair[0]} -> {pair[1]}: {added} changed lines")

expected = run("plain", 1)
for name, ranks in (("ddp", 1), ("ddp", 2), ("zero3", 3)):
    seen = run(name, ranks)
    assert all(abs(a - b) <= TOLERANCE * max(1, abs(b)) for a, b in zip(seen, expected)), f"{name} on {ranks}: {seen}, not {expected}"
    print(f"{name} on {ranks}: loss and accuracy {seen}, plain {expected}")
