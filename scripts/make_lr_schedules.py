# SPDX-License-Identifier: MIT
"""Writes tests/unit/optim/data/lr_schedules.json: learning rates of transformers' schedules, step by step.

Usage: make_lr_schedules.py [repository root]   (needs torch and transformers 5)
"""
import json
import pathlib
import sys

import torch
import transformers
from transformers.optimization import get_scheduler
from transformers.trainer_utils import SchedulerType

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
PLATEAU = "reduce_lr_on_plateau"
ADAPTIVE = {PLATEAU, "greedy"}

# (schedule, peak, warm-up steps, steps, keyword arguments)
CASES = [
    ("linear", 5e-5, 0, 20, {}), ("linear", 1.0, 4, 20, {}), ("linear", 1.0, 20, 20, {}),
    ("cosine", 5e-5, 0, 20, {}), ("cosine", 2e-3, 5, 23, {}), ("cosine", 1.0, 3, 20, {"num_cycles": 1.5}),
    ("cosine_with_restarts", 5e-5, 0, 20, {}), ("cosine_with_restarts", 1.0, 3, 33, {"num_cycles": 4}),
    ("polynomial", 5e-5, 0, 20, {}), ("polynomial", 0.1, 4, 30, {"lr_end": 0.01, "power": 2.5}),
    ("constant", 5e-5, 4, 20, {}), ("constant_with_warmup", 5e-5, 4, 20, {}),
    ("inverse_sqrt", 5e-5, 0, 20, {}), ("inverse_sqrt", 1.0, 4, 30, {}), ("inverse_sqrt", 1.0, 4, 30, {"timescale": 9}),
    ("cosine_with_min_lr", 5e-5, 4, 20, {"min_lr": 1e-6}),
    ("cosine_with_min_lr", 1.0, 0, 20, {"min_lr_rate": 0.1, "num_cycles": 1}),
    ("cosine_warmup_with_min_lr", 5e-5, 4, 20, {"min_lr": 1e-6}),
    ("cosine_warmup_with_min_lr", 1.0, 5, 21, {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2}),
    ("cosine_warmup_with_min_lr", 1.0, 0, 10, {"min_lr_rate": 0.1}),
    ("warmup_stable_decay", 5e-5, 4, 20, {"num_decay_steps": 6}),
    ("warmup_stable_decay", 1.0, 4, 20, {"num_decay_steps": 6, "num_stable_steps": 5, "warmup_type": "cosine",
                                         "decay_type": "linear", "min_lr_ratio": 0.1}),
    ("warmup_stable_decay", 1.0, 5, 20, {"num_decay_steps": 8, "warmup_type": "1-sqrt", "decay_type": "1-sqrt"}),
]
# (peak, keyword arguments, metrics observed one after the other)
PLATEAUS = [
    (1.0, {"patience": 1}, [3, 2, 2, 2, 2, 1.9999, 1.9, 1.9, 1.95, 2, 2]),
    (5e-5, {"patience": 0, "factor": 0.5, "cooldown": 2, "min_lr": 1e-5}, [1.0] * 14),
]


def made(name, peak, warmup, total, keywords):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    return optimizer, get_scheduler(name, optimizer, warmup, total, keywords)


def steps(name, peak, warmup, total, keywords):
    optimizer, scheduler = made(name, peak, warmup, total, keywords)
    rates = []
    for _ in range(total + 3):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return {"name": name, "peak": peak, "warmup_steps": warmup, "total_steps": total, "options": keywords, "rates": rates}


def plateau(peak, keywords, metrics):
    optimizer, scheduler = made(PLATEAU, peak, None, None, keywords)
    rates = []
    for metric in metrics:
        scheduler.step(metric)
        rates.append(optimizer.param_groups[0]["lr"])
    return {"peak": peak, "options": keywords, "metrics": metrics, "rates": rates}


names = [kind.value for kind in SchedulerType]
assert set(names) == {case[0] for case in CASES} | ADAPTIVE, names
out = {"transformers": transformers.__version__, "names": names, "schedules": [steps(*case) for case in CASES],
       "plateaus": [plateau(*case) for case in PLATEAUS]}
path = ROOT / "tests/unit/optim/data/lr_schedules.json"
path.write_text(json.dumps(out, indent=0).replace(",\n", ", ").replace("}, {", "},\n{") + "\n")
