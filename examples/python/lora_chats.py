# SPDX-License-Identifier: MIT
"""LoRA on chats in packed rows. Usage: torchrun --nproc-per-node 2 lora_chats.py MODEL CHATS STEPS OUTPUT"""
import json
import sys

import numpy
import tessera
from transformers import AutoTokenizer

directory, chats, steps, output = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
tokenizer = AutoTokenizer.from_pretrained(directory)


def row_of(line):
    """Ids and labels of a chat: the assistant's turns are learnt."""
    chat = tokenizer.apply_chat_template(json.loads(line)["messages"], return_dict=True, return_assistant_tokens_mask=True)
    return chat["input_ids"], [token if own else -100 for token, own in zip(chat["input_ids"], chat["assistant_masks"])]


def packed(chosen):
    """Rows end to end, as transformers' DataCollatorWithFlattening lays them."""
    join = lambda parts: numpy.concatenate(list(parts))[None]
    return {"input_ids": join(ids for ids, _ in chosen), "labels": join(labels for _, labels in chosen),
            "position_ids": join(numpy.arange(len(ids)) for ids, _ in chosen)}


rows = [row_of(line) for line in open(chats)]
with tessera.Job() as job:
    strategy = tessera.Strategy(job, tessera.Model.from_pretrained(directory), strategy="zero2", lora_r=8, lora_alpha=16, seed=1)
    schedule = tessera.LrSchedule(learning_rate=1e-3, total_steps=steps)
    for step in range(steps):
        first = (step * job.world_size + job.rank) * 4
        result = strategy.forward_backward(packed([rows[place % len(rows)] for place in range(first, first + 4)]))
        norm = strategy.clip(1.0).norm
        strategy.optimizer_step(schedule.at(strategy.updates))
        if job.rank == 0:
            print(f"step {step + 1} loss {result.loss!r} norm {norm!r}", flush=True)
    strategy.export(output)  # the adapter, for PEFT
