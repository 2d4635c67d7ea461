#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes data/muon.json: 20 steps of torch.optim.Muon (torch 2.11, CPU) in fp32. Gradients are those of muon_test.cpp."""
import json
import pathlib

import torch

STEPS, RATE = 20, 0.02


def wave(shape, step):
    """The same numbers in C++: sines of fp64 arguments, rounded to fp32."""
    count = shape[0] * shape[1]
    at = torch.arange(count, dtype=torch.float64)
    return torch.sin(1.7 * at + 0.9 * step + 0.3 * at * at).to(torch.float32).view(shape)


cases = []
for shape, options in [
    ((4, 6), {}),
    ((7, 3), {"weight_decay": 0.2}),
    ((5, 5), {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.8}),
    ((6, 2), {"nesterov": False, "ns_steps": 3, "weight_decay": 0.0}),
]:
    parameter = torch.nn.Parameter(wave(shape, -1))
    optimizer = torch.optim.Muon([parameter], lr=RATE, **options)
    for step in range(STEPS):
        parameter.grad = wave(shape, step)
        optimizer.step()
    momentum = optimizer.state[parameter]["momentum_buffer"]
    cases.append({"shape": list(shape), **options, "parameter": parameter.detach().flatten().tolist(), "momentum_buffer": momentum.flatten().tolist()})
text = ",\n".join(json.dumps(case) for case in cases)
(pathlib.Path(__file__).parent / "data" / "muon.json").write_text("[\n" + text + "\n]\n")
