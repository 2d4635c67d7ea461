# SPDX-License-Identifier: MIT
"""Writes tests/programs/training_arguments.txt: the names of transformers' TrainingArguments.

Usage: make_training_arguments.py [repository root]   (needs torch and transformers 5)
"""
import dataclasses
import pathlib
import sys

import transformers

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
names = [field.name for field in dataclasses.fields(transformers.TrainingArguments) if field.init]
(ROOT / "tests/programs/training_arguments.txt").write_text("\n".join(names) + "\n")
