# SPDX-License-Identifier: MIT
"""Compiles programs that must not compile: each misuse is one error, which says what its comment has.

Usage: misuse.py COMPILER INCLUDE_DIRS SOURCE. The folders are separated by colons.
"""
import re
import subprocess
import sys

compiler, folders, source = sys.argv[1:]
command = [compiler, "-std=c++20", "-fsyntax-only", source]
for folder in dict.fromkeys(filter(None, folders.split(":"))):
    command += ["-isystem" if "torch" in folder else "-I", folder]
output = subprocess.run(command, capture_output=True, text=True, check=False).stderr
errors = [line for line in output.splitlines() if re.search(r"\berror: ", line)]
sentences = re.findall(r"// says: (.*)", open(source, encoding="utf-8").read())
missing = [sentence for sentence in sentences if not any(sentence in error for error in errors)]
for sentence in missing:
    print("nothing says:", sentence)
others = [error for error in errors if not any(sentence in error for sentence in sentences)]
for error in others:
    print("another error:", error)
if len(errors) != len(sentences):
    print(f"{len(errors)} errors of {len(sentences)} misuses")
sys.exit(bool(missing or others or len(errors) != len(sentences)))
