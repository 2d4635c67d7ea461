# SPDX-License-Identifier: MIT
"""Direct preference optimization (Rafailov et al. 2023) by hand. Usage: torchrun --nproc-per-node 2 dpo.py MODEL PAIRS STEPS OUTPUT"""
import json
import sys

import tessera
import torch
from transformers import AutoTokenizer

directory, pairs, steps, output = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
tokenizer = AutoTokenizer.from_pretrained(directory)
pairs = [json.loads(line) for line in open(pairs)]


def batch_of(pairs):
    """Rows of the chosen answers, then of the rejected ones; labels on the answers alone."""
    rows = []
    for prompt, answer in [(pair["prompt"], pair[kind]) for kind in ("chosen", "rejected") for pair in pairs]:
        before, after = tokenizer(prompt)["input_ids"], tokenizer(answer)["input_ids"]
        rows.append((torch.tensor(before + after), torch.tensor([-100] * len(before) + after)))
    pad = lambda tensors, value: torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
    ids = pad([ids for ids, _ in rows], -1)
    return {"input_ids": ids.clamp(min=0), "labels": pad([labels for _, labels in rows], -100), "attention_mask": ids >= 0}


with tessera.Job() as job:
    policy = tessera.Strategy(job, tessera.Model.from_pretrained(directory), strategy="zero3", optim="sgd")
    mine = [batch_of(pairs[first:first + 2]) for first in range(2 * job.rank, len(pairs) - 1, 2 * job.world_size)]
    references = [torch.from_dlpack(policy.log_probabilities(batch)) for batch in mine]
    for step in range(steps):
        def loss(log_probabilities):
            chosen, rejected = (log_probabilities - references[step % len(mine)]).sum(1).chunk(2)
            return -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()
        value = policy.forward_backward(mine[step % len(mine)], loss=loss).loss
        policy.optimizer_step(0.1)
        if job.rank == 0:
            print(f"step {step + 1} loss {value!r}", flush=True)
    policy.export(output)
