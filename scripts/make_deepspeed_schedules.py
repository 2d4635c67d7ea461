# SPDX-License-Identifier: MIT
"""Writes tests/unit/optim/data/deepspeed_schedules.json: learning rates of DeepSpeed's schedulers, update by update.

Usage: make_deepspeed_schedules.py DEEPSPEED/deepspeed/runtime/lr_schedules.py   (that file alone; neither torch nor DeepSpeed is needed)
"""
import json
import logging
import pathlib
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent

# (scheduler, rate of the optimizer, keyword arguments)
CASES = [
    ("WarmupLR", 1e-3, {"warmup_num_steps": 6}),
    ("WarmupLR", 1e-3, {"warmup_num_steps": 6, "warmup_min_lr": 1e-5, "warmup_max_lr": 5e-4}),
    ("WarmupLR", 1e-3, {"warmup_num_steps": 1, "warmup_max_lr": 5e-4, "warmup_type": "linear"}),
    ("WarmupDecayLR", 1e-3, {"total_num_steps": 20, "warmup_num_steps": 5, "warmup_max_lr": 2e-3}),
    ("WarmupDecayLR", 1e-3, {"total_num_steps": 12, "warmup_num_steps": 4, "warmup_min_lr": 1e-4, "warmup_max_lr": 1e-3, "warmup_type": "linear"}),
    ("WarmupDecayLR", 1e-3, {"total_num_steps": 3, "warmup_num_steps": 5, "warmup_max_lr": 1e-3}),
    ("WarmupCosineLR", 1e-3, {"total_num_steps": 20, "warmup_num_steps": 5}),
    ("WarmupCosineLR", 1e-3, {"total_num_steps": 14, "warmup_num_steps": 3, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.05, "warmup_type": "linear"}),
    ("WarmupCosineLR", 1e-3, {"total_num_steps": 4, "warmup_num_steps": 6}),
]
OPTIONS = ("warmup_min_lr", "warmup_type", "warmup_min_ratio", "cos_min_ratio")


class Optimizer:
    def __init__(self, rate):
        self.param_groups = [{"lr": rate}]
        self.defaults = {}


def load(path):
    torch, utils = types.ModuleType("torch"), types.ModuleType("deepspeed.utils")
    torch.optim, torch.is_tensor = types.ModuleType("torch.optim"), lambda value: False
    torch.optim.Optimizer, utils.logger = Optimizer, logging.getLogger("silent")
    utils.logger.setLevel(logging.CRITICAL)
    sys.modules.update({"torch": torch, "torch.optim": torch.optim, "deepspeed": types.ModuleType("deepspeed"), "deepspeed.utils": utils})
    schedules = types.ModuleType("lr_schedules")
    exec(compile(pathlib.Path(path).read_text(), path, "exec"), schedules.__dict__)
    return schedules


def rates(schedules, name, rate, arguments):
    optimizer = Optimizer(rate)
    scheduler = getattr(schedules, name)(optimizer, **arguments)
    result = []
    for _ in range(24):
        result.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    return result


def main(path):
    schedules = load(path)
    cases = []
    for name, rate, arguments in CASES:
        options = {k: v for k, v in arguments.items() if k in OPTIONS}
        cases.append({"name": name, "peak": arguments.get("warmup_max_lr", rate), "warmup_steps": arguments["warmup_num_steps"],
                      "total_steps": arguments.get("total_num_steps", 24), "options": options, "rates": rates(schedules, name, rate, arguments)})
    out = ROOT / "tests/unit/optim/data/deepspeed_schedules.json"
    out.write_text(json.dumps({"schedules": cases}, indent=0).replace(",\n", ", ").replace("}, {", "},\n{") + "\n")


main(sys.argv[1])
