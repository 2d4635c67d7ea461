#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the rows of parquet or arrow files as JSON lines: parquet_to_jsonl.py train-*.parquet > train.jsonl (pip install pyarrow)."""
import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq

for path in sys.argv[1:]:
    batches = pq.ParquetFile(path).iter_batches() if path.endswith(".parquet") else pa.ipc.open_stream(pa.memory_map(path))
    for batch in batches:
        for row in batch.to_pylist():
            print(json.dumps(row, ensure_ascii=False, default=str))
