#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Formats the C++ sources with clang-format 14 and .clang-format. Other versions break lines elsewhere, so no other one is used.

  scripts/format.py [FILE...]       these, or all of the tree
  scripts/format.py --since COMMIT  what changed since then
  --check      change nothing; name the first place of each file that is not formatted, and exit with 1 if there is one
  --required   a host without clang-format 14 is an error (1), not a skip (77)
  --root DIR   another tree than this script's
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

VERSION = "14"
SKIPPED = 77
SUFFIXES = (".h", ".hpp", ".cpp", ".cu", ".cuh")
FOLDERS = ("include", "lib", "backends", "examples", "benchmarks", "python", "tests", "cmake")
BATCH = 40


def clang_format():
    """The program of the version, or None."""
    for name in (os.environ.get("CLANG_FORMAT"), f"clang-format-{VERSION}", "clang-format"):
        path = shutil.which(name) if name else None
        if path:
            said = subprocess.run([path, "--version"], check=False, stdout=subprocess.PIPE, text=True).stdout
            if re.search(rf"\bversion {VERSION}\.", said):
                return path
    return None


def sources(root, since):
    if since:
        command = ["git", "-C", str(root), "diff", "--name-only", "--diff-filter=d", since, "--", *FOLDERS]
        names = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        return [root / name for name in names if name.endswith(SUFFIXES)]
    return sorted(file for top in FOLDERS for file in (root / top).rglob("*") if file.suffix in SUFFIXES and file.is_file())


def complaints(program, files):
    """FILE:LINE of the first place in each file that is not formatted."""
    run = subprocess.run([program, "--dry-run", "--style=file", *map(str, files)], check=False, stderr=subprocess.PIPE, text=True)
    first = {}
    for match in re.finditer(r"^(.+?):(\d+):\d+: (warning|error): ", run.stderr, re.MULTILINE):
        first.setdefault(match[1], match[2])
    if run.returncode != 0 and not first:
        sys.exit(f"format: clang-format failed: {run.stderr}")
    return first


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--since")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--required", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    given = parser.parse_args()
    program = clang_format()
    if program is None:
        print(f"format: there is no clang-format {VERSION} on this host; install it (Debian, Ubuntu: apt-get install clang-format-{VERSION}), "
              "or name it in CLANG_FORMAT")
        return 1 if given.required else SKIPPED
    root = given.root.resolve()
    files = [file for file in given.files if file.suffix in SUFFIXES] if given.files else sources(root, given.since)
    batches = [files[i:i + BATCH] for i in range(0, len(files), BATCH)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        if not given.check:
            list(pool.map(lambda batch: subprocess.run([program, "-i", "--style=file", *map(str, batch)], check=True), batches))
            print(f"format: {len(files)} files are formatted")
            return 0
        found = {file: line for first in pool.map(lambda batch: complaints(program, batch), batches) for file, line in first.items()}
    for file, line in sorted(found.items()):
        print(f"{os.path.relpath(file, root)}:{line}: not as clang-format {VERSION} writes it")
    print(f"format: {len(found)} of {len(files)} files differ; scripts/format.py formats them" if found else f"format: {len(files)} files are formatted")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
