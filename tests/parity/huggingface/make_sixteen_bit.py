# SPDX-License-Identifier: MIT
"""Makes causal/{bf16,fp16}.json: the tiny BLOOM of causal/ trained in 16 bit by torch, with fp32 masters and torch's GradScaler.

Usage: make_sixteen_bit.py OUTPUT_DIRECTORY, after make_fixtures.py. Dropout is off; the batches are those of causal/, again and again.
"""
import json
import math
import pathlib
import sys

import torch
from make_fixtures import ROWS, TRAINING, fingerprint, loss_sum, write_json
from safetensors.torch import load_file
from transformers import BloomForCausalLM, get_linear_schedule_with_warmup

STEPS = 24
SCALER = {"init_scale": 10.0 * 2**16, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 4}
LARGEST_HALF = 65504.0
MARGIN = 1.1  # no gradient comes closer to fp16's end than this factor, on either side: which steps overflow depends on no rounding


def gradients(model, batch, scale, parts):
    """Loss and 16-bit gradients of scale * mean loss, accumulated over equal parts of the rows as a training loop does."""
    count = int((batch["labels"] != -100).sum())
    model.zero_grad(set_to_none=True)
    loss = 0.0
    for part in range(parts):
        rows = slice(part * ROWS // parts, (part + 1) * ROWS // parts)
        part_loss = loss_sum(model, {key: value[rows] for key, value in batch.items()}) / count
        (part_loss * scale).backward()
        loss += part_loss.item()
    return loss, {name: p.grad for name, p in model.named_parameters()}


def check_margin(model, batch, scale, skipped):
    """The largest scaled gradient, measured at a scale that fits, is clearly inside or clearly outside of fp16."""
    _, found = gradients(model, batch, scale / 16, 1)
    reach = 16 * max(g.float().abs().max().item() for g in found.values()) / LARGEST_HALF
    assert reach > MARGIN if skipped else reach < 1 / MARGIN, (reach, skipped)
    return reach


def train(directory, dtype, parts=1):
    """One update per batch; the masters are fp32, the model computes with their rounded values."""
    expected = json.loads((directory / "expected.json").read_text())
    model = BloomForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    stored = load_file(directory / "batches.safetensors")
    batches = [{key: value[step % len(value)].long() for key, value in stored.items()} for step in range(STEPS)]
    masters = {name: torch.nn.Parameter(p.detach().clone()) for name, p in model.named_parameters()}
    before = {name: p.detach().clone() for name, p in masters.items()}
    model.to(dtype)
    decaying = set(expected["decay"])
    groups = [{"params": [p for n, p in masters.items() if n in decaying], "weight_decay": TRAINING["weight_decay"]},
              {"params": [p for n, p in masters.items() if n not in decaying], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=TRAINING["learning_rate"], betas=(0.9, 0.999), eps=1e-8)
    schedule = get_linear_schedule_with_warmup(optimizer, TRAINING["warmup_steps"], STEPS)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16, **SCALER)
    result = {"loss": [], "grad_norm": [], "loss_scale": [], "learning_rate": [], "reach": []}
    for batch in batches:
        scale = scaler.get_scale()
        scaler.scale(torch.zeros(()))  # makes its state, as scaling the loss does
        loss, found = gradients(model, batch, scale, parts)
        for name, master in masters.items():
            master.grad = found[name].float()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(list(masters.values()), expected["training"]["max_grad_norm"]).item()
        result["loss"].append(loss)
        result["grad_norm"].append(norm if math.isfinite(norm) else None)
        result["loss_scale"].append(scale)
        result["learning_rate"].append(schedule.get_last_lr()[0])
        scaler.step(optimizer)
        scaler.update()
        if dtype == torch.float16:
            result["reach"].append(check_margin(model, batch, scale, not math.isfinite(norm)))
        if math.isfinite(norm):
            schedule.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(masters[name])
    heads = model.config.num_attention_heads
    result["final"] = {name: fingerprint(name, before[name], p.detach(), heads) for name, p in masters.items()}
    with torch.no_grad():
        result["eval_loss"] = loss_sum(model, batches[0]).item() / int((batches[0]["labels"] != -100).sum())
    return result | {"scaler": SCALER, "training": expected["training"]}


def main():
    directory = pathlib.Path(sys.argv[1]) / "causal"
    torch.set_num_threads(1)
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        result = train(directory, dtype)
        again = train(directory, dtype, parts=3)
        assert result["loss_scale"] == again["loss_scale"] and result["learning_rate"] == again["learning_rate"]
        for key in ("loss", "grad_norm"):
            worst = max(abs(a - b) / abs(b) for a, b in zip(again[key], result[key]) if a is not None)
            print(name, key, "in three parts differs by", worst)
        print(name, "reach", [round(r, 2) for r in result.pop("reach")], "scale", result["loss_scale"])
        write_json(directory / f"{name}.json", result)


if __name__ == "__main__":
    main()
