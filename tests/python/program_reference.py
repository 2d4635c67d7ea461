# SPDX-License-Identifier: MIT
"""Numbers of training in PyTorch, written as reference.json beside an exported program; exported_parity and test_program read them.

"batches": the micro-batches, by the names of inputs; "labels" of a causal model are not shifted, -100 is ignored. For each optimizer "loss" has
each step's loss before its update, "gradients" the first step's norm and probe of each parameter, "final" those of the weights after the steps,
"buffers" the values of changing buffers then. A probe is the sum of the elements times cos(0), cos(1), ... in row-major order.
"seeds": those of the micro-batches, where a program draws; PyTorch's generator then has block_seed(seed, 0).
"""
import json

import torch

STEPS = 5
OPTIMIZERS = {"adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01),
              "sgd": lambda p: torch.optim.SGD(p, lr=5e-2), "small_sgd": lambda p: torch.optim.SGD(p, lr=5e-3)}
SETTINGS = {"adamw": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}, "sgd": {"lr": 5e-2}, "small_sgd": {"lr": 5e-3}}


def probe(tensor):
    flat = tensor.detach().double().flatten()
    return {"norm": flat.norm().item(), "probe": (flat * torch.cos(torch.arange(flat.numel(), dtype=torch.float64))).sum().item()}


def block_seed(seed, block):
    """The seed of a block's draws, as tessera::block_seed (SplitMix64)."""
    bits, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15
    x = (seed * golden + block + 1 + golden) & bits
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & bits
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & bits
    return x ^ (x >> 31)


def randomise(module, generator, scale=0.12):
    """Weights larger than the initial ones, norms away from 1, so that every term matters."""
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(scale * noise if parameter.dim() > 1 else parameter + 0.1 * noise)


def causal_batches(generator, vocabulary, rows=4, length=13):
    """Rows of random tokens without padding; up to five tokens at their beginning are no targets."""
    batches = []
    for step in range(STEPS):
        ids = torch.randint(3, vocabulary, (rows, length - step % 2), generator=generator)
        labels = ids.clone()
        for row in range(rows):
            labels[row, :int(torch.randint(0, 6, (1,), generator=generator))] = -100
        batches.append({"input_ids": ids, "labels": labels})
    return batches


def changing_buffers(module):
    return {name: value for name, value in module.named_buffers() if "running" in name or "batches" in name}


def train(module, loss_of, batches, kind, buffers_of=changing_buffers):
    """A step a batch; loss_of(module, batch, step) gives the loss. Returns the numbers of one optimizer for reference.json.

    Parameters of 16 bits are copies of fp32 masters, which the optimizer steps.
    """
    parameters = dict(module.named_parameters())
    masters = {name: p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float()) for name, p in parameters.items()}
    optimizer = OPTIMIZERS[kind](masters.values())
    losses, gradients = [], None
    for step, batch in enumerate(batches):
        module.zero_grad()
        loss = loss_of(module, batch, step)
        loss.backward()
        for name, p in parameters.items():
            if masters[name] is not p:
                masters[name].grad = p.grad.float()
        if gradients is None:
            gradients = {name: probe(torch.zeros_like(p) if p.grad is None else p.grad) for name, p in masters.items()}
        losses.append(loss.item())
        optimizer.step()
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(masters[name])
    return {"settings": SETTINGS[kind], "loss": losses, "gradients": gradients, "final": {name: probe(p) for name, p in masters.items()},
            "buffers": {name: value.tolist() for name, value in buffers_of(module).items()}}


def write_reference(out, about, batches, results, **more):
    text = {"about": about, "batches": [{name: value.tolist() for name, value in batch.items()} for batch in batches], "optimizers": results, **more}
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in text.items())
    (out / "reference.json").write_text("{\n" + lines + "\n}\n")
