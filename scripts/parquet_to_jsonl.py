#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the rows of parquet, arrow or feather files as JSON lines: parquet_to_jsonl.py train-*.parquet > train.jsonl (pip install pyarrow)."""
import json
import sys

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet


def batches(path):
    with open(path, "rb") as file:
        start = file.read(6)
    if start.startswith(b"PAR1"):
        return pa.parquet.ParquetFile(path).iter_batches()
    if start == b"ARROW1" or start.startswith(b"FEA1"):
        return pa.feather.read_table(path).to_batches()
    return pa.ipc.open_stream(pa.memory_map(path))


for path in sys.argv[1:]:
    for batch in batches(path):
        for row in batch.to_pylist():
            print(json.dumps(row, ensure_ascii=False, default=str))
