# SPDX-License-Identifier: MIT
"""Other trainers as rows of tessera-compare: from the same weights, on the same rows, they have our losses.

Usage: peers.py SOURCE_ROOT BIN_FOLDER, in the environment that run.sh makes.
"""
import json
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / "tests/programs"))
from support import DATA, Checker, launch  # noqa: E402

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_peers_"))
(folder / "rows.txt").write_text("1 --strategy single\n1 --peer hf\n1 --peer torch\n2 --peer torch\n2 --peer torch --strategy fsdp\n"
                                 "2 --peer hf --gradient_checkpointing\n1 --peer torch-compile\n1 --peer deepspeed\n")
# Every token supervised: the first of a row has a label, and is nobody's target.
(folder / "ids.jsonl").write_text("".join(json.dumps({"input_ids": [(7 * row + 3 * i) % 250 for i in range(16 + row % 3)]}) + "\n"
                                          for row in range(30)))
answers = ["--tokenizer", str(DATA / "tokenizer"), "--train_file", str(DATA / "squad_sample.json")]
tokens = ["--task", "causal", "--train_ids", str(folder / "ids.jsonl")]
for work, model, data in [("answers-bloom", "bloom-tiny", answers), ("answers-gpt2", "gpt2-tiny", answers),
                          ("answers-llama", "llama-tiny", answers), ("tokens-bloom", "bloom-tiny", tokens), ("tokens-gpt2", "gpt2-tiny", tokens),
                          ("random-llama", "llama-tiny", ["--task", "causal", "--random_rows", "30", "--random_row_length", "20"])]:
    out = folder / work
    result = launch("tessera-compare", ["--model_config", model, "--max_seq_length", "96", *data, "--max_steps", "5",
                                        "--learning_rate", "1e-3", "--warmup_steps", "2", "--weight_decay", "0.01",
                                        "--per_device_train_batch_size", "2", "--launcher", "threads", "--rows", str(folder / "rows.txt"),
                                        "--python", sys.executable, "--output_dir", str(out)], environment={"CUDA_VISIBLE_DEVICES": ""})
    check.that(result.code == 0, f"{work}: peers are rows", result)
    rows = {row["row"]: row for row in json.loads((out / "compare.json").read_text())["rows"]}
    for name, row in rows.items():
        if name == "single-1":
            continue
        if name == "deepspeed-single-1":
            check.that(row["verdict"] == "not available" and "deepspeed" in row["message"], f"{name} says what is missing: {row}")
            continue
        check.that(row["verdict"] == "peer" and row["reference"] == "single-1" and row["mark"] is None, f"{work} {name}: {row['verdict']}")
        check.that(row["loss_difference_ratio"] < 1e-5 and row["grad_norm_difference_ratio"] < 1e-3,
                   f"{work} {name}: loss {row['loss_difference_ratio']}, norm {row['grad_norm_difference_ratio']}", result)
        check.that(row["tokens_per_second_median"] > 0 and row["cpu_rss_tree_peak_bytes"] > 1 << 26, f"{work} {name} was measured")

# Adapters: B is zero, so the first losses are alike though A is drawn anew.
adapters = "--lora_r 4 --lora_target_modules all-linear"
(folder / "adapters.txt").write_text(f"1 --strategy single {adapters}\n1 --peer peft {adapters}\n2 --peer peft {adapters} --gradient_checkpointing\n")
out = folder / "adapters"
result = launch("tessera-compare", ["--model_config", "qwen3-tiny", "--max_seq_length", "96", *answers, "--max_steps", "3", "--learning_rate", "1e-4",
                                    "--per_device_train_batch_size", "2", "--launcher", "threads", "--rows", str(folder / "adapters.txt"),
                                    "--python", sys.executable, "--output_dir", str(out)], environment={"CUDA_VISIBLE_DEVICES": ""})
check.that(result.code == 0, "peft is a peer", result)
for row in json.loads((out / "compare.json").read_text())["rows"][1:]:
    check.that(row["verdict"] == "peer" and row["loss_difference_ratio"] < 1e-3, f"{row['row']}: {row['verdict']} {row.get('loss_difference_ratio')}", result)

shutil.rmtree(folder)
check.finish()
