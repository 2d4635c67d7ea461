# SPDX-License-Identifier: MIT
"""Adapters of PEFT beside exported programs: 20 steps of AdamW in PEFT, whose numbers exported_lora and test_parity_programs compare with.

Beside a program, "adapter" holds what PEFT's save_pretrained() wrote before training, and adapter/expected.json the numbers: each step's loss, and
of every trained tensor the norm after the steps, of its change, and the change's sum with cos(0), cos(1), ... Batches are those of reference.json,
in turn.
"""
import json
import shutil

import torch

STEPS = 20
TRAINING = {"learning_rate": 2e-3, "weight_decay": 0.1, "epsilon": 1e-6}


def stored(name):
    """A parameter's name in adapter_model.safetensors."""
    return name.replace(".default", "").replace(".modules_to_save", "")


def fingerprint(before, after):
    before, after = before.double().flatten(), after.double().flatten()
    probe = torch.cos(torch.arange(after.numel(), dtype=torch.float64))
    return {"norm": after.norm().item(), "change": (after - before).norm().item(), "probe": ((after - before) * probe).sum().item()}


def adapted(model, seed, **options):
    """The model with adapters whose B is not zero, which would hide half of the terms."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return model


def trained_names(model):
    return {stored(name): p for name, p in model.named_parameters() if p.requires_grad}


def train_adapter(model, folder):
    """Writes the adapter and its numbers beside the program in the folder. Returns the trained tensors by their names in PEFT's file."""
    directory = folder / "adapter"
    shutil.rmtree(directory, ignore_errors=True)
    model.peft_config["default"].base_model_name_or_path = folder.name
    model.save_pretrained(directory, save_embedding_layers=False)
    (directory / "README.md").unlink()
    batches = json.loads((folder / "reference.json").read_text())["batches"]
    named = trained_names(model)
    groups = [{"params": [p for p in named.values() if p.dim() >= 2], "weight_decay": TRAINING["weight_decay"]},
              {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=TRAINING["learning_rate"], betas=(0.9, 0.999), eps=TRAINING["epsilon"])
    before = {name: p.detach().clone() for name, p in named.items()}
    losses = []
    for step in range(STEPS):
        batch = {name: torch.tensor(value) for name, value in batches[step % len(batches)].items()}
        optimizer.zero_grad()
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    final = {name: fingerprint(before[name], p.detach()) for name, p in named.items()}
    (directory / "expected.json").write_text(json.dumps({"training": TRAINING, "loss": losses, "final": final}, indent=1) + "\n")
    return {name: p.detach() for name, p in named.items()}
