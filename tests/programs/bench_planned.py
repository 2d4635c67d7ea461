# SPDX-License-Identifier: MIT
"""bench_strategies with flags that need a plan: what they choose is in the row, and what cannot be is refused.

Usage: bench_planned.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import json
import pathlib
import tempfile

from support import MPIRUN, Checker, launch

check = Checker()
MARK = "TESSERA "
ROWS = ["--model_config", "bloom-mini", "--max_seq_length", "64", "--max_steps", "2", "--warmup", "1"]


def rows_of(name, *flags, ranks=0):
    run = launch("bench_strategies", [*ROWS, *flags], mpi_ranks=ranks)
    check.that(run.code == 0, name, run)
    return [json.loads(line[len(MARK):]) for line in run.text.splitlines() if line.startswith(MARK)]


plain = rows_of("no plan", "--per_device_train_batch_size", "4,2")
check.that(len(plain) == 2 and all("recomputed_blocks" not in row for row in plain), f"{plain}")
# As many as must: none where all fits, more in the larger of two micro-batches.
wide = rows_of("wide", "--activation_memory", "1GiB")
check.that([row["recomputed_blocks"] for row in wide] == [0], f"{wide}")
narrow = rows_of("narrow", "--activation_memory", "6MiB", "--per_device_train_batch_size", "4,2")
blocks = [row["recomputed_blocks"] for row in narrow]
check.that(len(blocks) == 2 and blocks[0] > blocks[1] >= 0, f"{narrow}")
check.that(all(0 < row["planned_activation_mib"] <= 6 for row in narrow), f"{narrow}")
check.that([row["loss"] for row in narrow] == [row["loss"] for row in plain], f"{narrow} {plain}")
offload = rows_of("offload", "--offload", "optimizer", "--offload_keep_on_gpu", "auto")
check.that([row["offload_gpu_mib"] for row in offload] == [0], f"the CPU has no memory apart: {offload}")
if MPIRUN:
    both = rows_of("two stages", "--strategy", "ddp", "--pipeline_parallel", "2", "--activation_memory", "1GiB", ranks=2)
    check.that([row["recomputed_blocks"] for row in both] == [0], f"{both}")

# Of a model without a preset.
with tempfile.TemporaryDirectory() as folder:
    config = pathlib.Path(folder, "config.json")
    config.write_text(json.dumps({"model_type": "qwen2", "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 300,
                                  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "hidden_act": "silu"}))
    own = rows_of("config.json", "--model_config", str(config))
    check.that(len(own) == 1 and own[0]["loss"] > 0, f"{own}")

refused = launch("bench_strategies", [*ROWS, "--activation_memory", "0.1MiB"])
check.that(refused.code == 3 and "is the least here" in refused.text, "too little", refused)
check.finish()
