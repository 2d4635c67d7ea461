#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whether training with products in 8 bits ends at the evaluation loss of bf16.

    scripts/debian_text.py text
    benchmarks/fp8_quality.py text runs/quality --programs build/cuda/bin

Trains a decoder of 102M parameters from random weights in bf16 and with --fp8, paired by seed, for
16,384 tokens a step. With a file of SQuAD instead of the folder: bloom-560m, eight rows a step,
evaluated on the file's last 64 questions. Holds, with exit code 0, if the mean difference of the
last evaluation losses is at most half a standard deviation of bf16's over the seeds. Otherwise 1; a
run that fails: 2.
Three seeds are too few: their standard deviation was a quarter of that of six. Six left a
standard error of the mean difference as large as what is allowed.

The test must be able to fail: with --planted FOLDER of programs built with
tests/mutants/fp8-scale-too-large.patch applied, the runs in 8 bits are theirs. The answer must be 1
then. --small takes a decoder of 1M parameters and 200 steps of 2,048 tokens, for a CPU.
"""

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENIZER = ROOT / "examples/data/tokenizer"
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 2048,
         "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 14,
         "num_attention_heads": 12, "num_key_value_heads": 12, "max_position_embeddings": 1024,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
         "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
         "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 4}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=pathlib.Path,
                        help="folder of scripts/debian_text.py, or JSON file of SQuAD")
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--programs", type=pathlib.Path, default=pathlib.Path(),
                        help="folder of tessera-finetune-causal and -squad")
    parser.add_argument("--planted", type=pathlib.Path,
                        help="folder of the programs of the runs in 8 bits, with a defect")
    parser.add_argument("--fp8", default="tensorwise", choices=["tensorwise", "rowwise"])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first_seed", type=int, default=1, help="to share seeds among GPUs")
    parser.add_argument("--steps", type=int, help="default: 1000, or 200 of the small decoder")
    parser.add_argument("--small", action="store_true", help="a decoder that a CPU trains")
    parser.add_argument("--at_once", type=int, default=2, help="runs that share the GPU")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--more", default="", help="further flags of all runs")
    given = parser.parse_args()
    if given.small and not given.text.is_dir():
        parser.error("--small is a decoder for the folder of scripts/debian_text.py")
    given.steps = given.steps or (200 if given.small else 1000)
    given.layers = given.layers or (SMALL if given.small else MODEL)["num_hidden_layers"]
    return given


def name_of(kind, seed):
    return f"{kind}-{seed}"


def task(given):
    """Name of the program, and its flags of model and data."""
    if given.text.is_dir():
        config = given.output / "config.json"
        model = MODEL | (SMALL if given.small else {}) | {"num_hidden_layers": given.layers}
        config.write_text(json.dumps(model))
        sizes = ["--max_seq_length", 1024, "--per_device_train_batch_size", 16,
                 "--learning_rate", 6e-4]
        if given.small:
            sizes = ["--max_seq_length", 256, "--per_device_train_batch_size", 8,
                     "--learning_rate", 2e-3, "--train_slice", "0:4000", "--validation_slice", "0:40"]
        return "causal", ["--model_config", config, "--train_file", given.text / "train.jsonl",
                          "--validation_file", given.text / "validation.jsonl", *sizes]
    rows = sum(len(paragraph["qas"]) for article in json.loads(given.text.read_text())["data"]
               for paragraph in article["paragraphs"])
    return "squad", ["--model_config", "bloom-560m", "--train_file", given.text,
                     "--validation_file", given.text, "--train_slice", f"0:{rows - 64}",
                     "--validation_slice", f"{rows - 64}:{rows}", "--squad_v2", "true",
                     "--supervise", "all", "--max_seq_length", 512,
                     "--per_device_train_batch_size", 8, "--learning_rate", 5e-5]


def run(given, kind, seed, program, flags):
    """Trains unless the run is there already; returns its evaluation losses by step."""
    folder = given.output / name_of(kind, seed)
    if not (folder / "done").exists():
        programs = given.planted if kind == "planted" else given.programs
        command = [programs / f"tessera-finetune-{program}", *flags, "--tokenizer", TOKENIZER,
                   "--max_steps", given.steps, "--eval_steps", max(given.steps // 5, 1),
                   "--lr_scheduler_type", "cosine",
                   "--warmup_steps", max(given.steps // 20, 1), "--weight_decay", 0.1,
                   "--dtype", "bf16", "--fp8", "off" if kind == "bf16" else given.fp8,
                   "--strategy", "single", "--seed", seed, "--save_final", "false", "--output_dir", folder,
                   "--overwrite_output_dir", "true", *given.more.split()]
        folder.mkdir(parents=True, exist_ok=True)
        with open(f"{folder}.log", "w", encoding="utf-8") as log:
            subprocess.run([str(part) for part in command], check=True, stdout=log,
                           stderr=subprocess.STDOUT)
        (folder / "done").touch()
    losses = []
    for line in open(folder / "metrics.jsonl", encoding="utf-8"):
        event = json.loads(line)
        if event.get("event") == "eval":
            losses.append((event["step"], event["eval_loss"]))
    return losses


def verdict(bf16, eight):
    """Lines of the answer, and whether it holds. Losses by seed."""
    differences = [b - a for a, b in zip(bf16, eight)]
    mean, deviation = statistics.mean(differences), statistics.stdev(bf16)
    holds = mean <= deviation / 2
    return [f"bf16 {' '.join(f'{x:.4f}' for x in bf16)}, standard deviation {deviation:.4f}",
            f"8 bits {' '.join(f'{x:.4f}' for x in eight)}",
            f"mean difference {mean:+.4f}, allowed {deviation / 2:.4f}: "
            + ("holds" if holds else "does not hold")], holds


def main():
    given = arguments()
    given.output.mkdir(parents=True, exist_ok=True)
    program, flags = task(given)
    kinds = ["bf16", "planted" if given.planted else "fp8"]
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    work = [(kind, seed) for seed in seeds for kind in kinds]
    with concurrent.futures.ThreadPoolExecutor(given.at_once) as pool:
        futures = [pool.submit(run, given, *each, program, flags) for each in work]
        try:
            curves = {each: future.result() for each, future in zip(work, futures)}
        except subprocess.CalledProcessError as error:
            log = f"{error.cmd[error.cmd.index('--output_dir') + 1]}.log"
            print(f"{error.cmd[0]} ended with code {error.returncode}; the end of {log}:\n"
                  + open(log, encoding="utf-8").read()[-2000:], file=sys.stderr)
            return 2
    for (kind, seed), curve in sorted(curves.items()):
        print(f"{name_of(kind, seed)}: " + " ".join(f"{step}:{loss:.4f}" for step, loss in curve))
    last = [[curves[kind, seed][-1][1] for seed in seeds] for kind in kinds]
    lines, holds = verdict(*last)
    print("\n".join(lines))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
