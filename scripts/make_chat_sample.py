#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes examples/data/chats_train.jsonl and chats_heldout.jsonl: questions about distributed training, each asked in several ways.

Some chats ask two questions. The held-out file asks every question in a way that the other does not.
Usage: make_chat_sample.py [repository root]
"""
import json
import pathlib
import sys

DATA = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "examples/data"
TERMS = {
    "data parallelism": "Every GPU holds the whole model and takes a part of the rows.",
    "ZeRO-1": "The optimizer state is sharded over the ranks.",
    "ZeRO-2": "Gradients and the optimizer state are sharded over the ranks.",
    "ZeRO-3": "Parameters, gradients and the optimizer state are sharded over the ranks.",
    "FSDP": "Like ZeRO-3, with one flat shard for each block.",
    "tensor parallelism": "Each matrix is split over the GPUs of one host.",
    "pipeline parallelism": "Each GPU holds some of the layers and passes activations on.",
    "offload": "The optimizer state waits in the memory of the host.",
    "gradient checkpointing": "Activations are computed again in backward to save memory.",
    "gradient accumulation": "Several micro-batches give one update.",
    "LoRA": "Two small matrices are trained beside a frozen one.",
    "a rank": "One of the processes that train together.",
    "an epoch": "One pass over all rows of the data.",
    "a learning rate": "How far one update moves the weights.",
    "a checkpoint": "A copy of the run from which it can go on.",
    "an all-reduce": "Every rank gets the sum over all ranks.",
    "an all-gather": "Every rank gets the parts of all ranks.",
    "a reduce-scatter": "Every rank gets one part of the sum.",
    "bf16": "A float of 16 bits with the range of fp32.",
    "a tokenizer": "It cuts text into the pieces that a model knows.",
    "a chat template": "It says how the turns of a chat are written as text.",
    "perplexity": "The exponential of the mean loss of a token.",
    "clipping": "Gradients of a large norm are made shorter.",
    "the global batch": "All rows that one update sees, over all ranks.",
}
ALONE = ("What is {}?", "Explain {}.", "Describe {} in one sentence.")
FIRST, SECOND = "What does {} mean?", "Tell me about {}."
HELD_OUT = "Can you explain {}?"


def turns(way, term):
    return [{"role": "user", "content": way.format(term)}, {"role": "assistant", "content": TERMS[term]}]


def write(name, chats):
    with (DATA / name).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"messages": chat}) + "\n" for chat in chats)
    print(f"{DATA / name}: {len(chats)} chats")


terms = list(TERMS)
alone = [turns(way, term) for term in terms for way in ALONE]
of_two = [turns(FIRST, term) + turns(SECOND, terms[(at + 7) % len(terms)]) for at, term in enumerate(terms)]
write("chats_train.jsonl", alone + of_two)
write("chats_heldout.jsonl", [turns(HELD_OUT, term) for term in terms])
