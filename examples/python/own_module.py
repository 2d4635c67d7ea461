# SPDX-License-Identifier: MIT
"""A module of one's own with a loss of its own. Usage: torchrun --nproc-per-node 2 own_module.py STEPS OUTPUT"""
import sys

import tessera
import torch
from torch import nn


class Forecaster(nn.Module):
    """Three quantiles of the next value of a series; its forward returns the pinball loss's sum and the number of its terms."""

    def __init__(self, window=16, width=32, layers=3):
        super().__init__()
        self.quantiles = (0.1, 0.5, 0.9)
        self.embed = nn.Linear(window, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(layers))
        self.head = nn.Linear(width, len(self.quantiles))

    def forward(self, series, target):
        hidden = self.embed(series)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        error = target.unsqueeze(1) - self.head(hidden)
        losses = [torch.maximum(q * error[:, i], (q - 1) * error[:, i]) for i, q in enumerate(self.quantiles)]
        return torch.stack(losses).sum(), torch.ones_like(error).sum()


steps, output = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
module, series = Forecaster(), torch.randn(256, 17).cumsum(1)
with tessera.Job() as job:
    model = tessera.Model.from_module(module, {"series": series[:4, :16], "target": series[:4, 16]})
    strategy = tessera.Strategy(job, model, strategy="zero3", optim="sgd")
    for step in range(steps):
        rows = series[(step * job.world_size + job.rank) * 8:][:8]
        loss = strategy.forward_backward({"series": rows[:, :16], "target": rows[:, 16]}).loss
        norm = strategy.clip(1.0).norm
        strategy.optimizer_step(0.05)
        if job.rank == 0:
            print(f"step {step + 1} loss {loss!r} norm {norm!r}", flush=True)
    torch.save(strategy.state_dict(), f"{output}.{job.rank}")  # for module.load_state_dict()
