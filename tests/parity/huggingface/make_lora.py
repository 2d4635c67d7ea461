# SPDX-License-Identifier: MIT
"""Makes the fixtures of lora/ with peft, transformers and torch: adapters of the models beside it, and the numbers they must give.

Usage: make_lora.py DIRECTORY, which make_fixtures.py has filled. Made with peft 0.21, transformers 5.23, torch 2.11; the suite reads only the
results.
"""
import json
import pathlib
import shutil
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from make_fixtures import check_finite, loss_sum, write_json

STEPS = 20
TRAINING = {"learning_rate": 5e-3, "weight_decay": 0.1}
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
# Name: base, its options.
ADAPTERS = {
    "bloom": ("causal", {"r": 4}),
    "bloom_all": ("causal", {"r": 3, "lora_alpha": 5, "target_modules": "all-linear", "init_lora_weights": "gaussian"}),
    "gpt2": ("gpt2", {"r": 4}),
    "gpt2_all": ("gpt2", {"r": 3, "target_modules": "all-linear", "modules_to_save": ["ln_f"]}),
    "llama": ("llama", {"r": 4, "lora_alpha": 16}),
    "llama_all": ("llama", {"r": 3, "use_rslora": True, "target_modules": "all-linear"}),
    "llama_tied_all": ("llama_tied", {"r": 2, "target_modules": "all-linear"}),
    "llama_classification": ("llama_classification", {"r": 4}),
    "bloom_classification_all": ("classification", {"r": 3, "target_modules": "all-linear"}),
    "mistral": ("mistral", {"r": 4}),
    "qwen2_all": ("qwen2", {"r": 3, "target_modules": "all-linear", "modules_to_save": ["norm"]}),
    "qwen3_all": ("qwen3", {"r": 3, "lora_alpha": 6, "target_modules": "all-linear"}),
    "gpt_oss_experts": ("gpt_oss", {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj"], "target_parameters": EXPERTS}),
    "gpt_oss_down": ("gpt_oss", {"r": 2, "use_rslora": True, "target_modules": [], "target_parameters": EXPERTS[1:]}),
    "qwen3_moe_tensors": ("qwen3_moe", {"r": 2, "lora_alpha": 5, "target_modules": ["q_proj", "o_proj"], "target_parameters": EXPERTS}),
    "olmoe_up": ("olmoe", {"r": 3, "target_modules": [], "target_parameters": EXPERTS[:1]}),
    "mixtral_tensors": ("mixtral", {"r": 2, "target_modules": ["v_proj"], "modules_to_save": ["norm"], "target_parameters": EXPERTS}),
}


def batches_of(directory):
    stacked = {key: value.long() for key, value in load_file(directory / "batches.safetensors").items()}
    count = len(stacked["labels"])
    return [{key: value[step % count] for key, value in stacked.items()} for step in range(STEPS)]


def stored(name):
    """A parameter's name in adapter_model.safetensors."""
    return name.replace(".default", "").replace(".modules_to_save", "")


def fingerprint(before, after):
    before, after = before.double().flatten(), after.double().flatten()
    probe = torch.cos(torch.arange(after.numel(), dtype=torch.float64))
    return {"norm": after.norm().item(), "change": (after - before).norm().item(), "probe": ((after - before) * probe).sum().item()}


def middle_norm(model, batches):
    """The median of the gradient norms before training, so that clipping is active in some steps."""
    norms = []
    for batch in batches[:9]:
        model.zero_grad()
        (loss_sum(model, batch) / int((batch["labels"] != -100).sum())).backward()
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.requires_grad]).item())
    return round(sorted(norms)[4], 3)


def train(model, batches, max_grad_norm):
    named = {stored(name): p for name, p in model.named_parameters() if p.requires_grad}
    groups = [{"params": [p for p in named.values() if p.dim() >= 2], "weight_decay": TRAINING["weight_decay"]},
              {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=TRAINING["learning_rate"], betas=(0.9, 0.999), eps=1e-8)
    before = {name: p.detach().clone() for name, p in named.items()}
    losses, norms = [], []
    for batch in batches:
        for parameter in named.values():  # also of an expert that no token meets
            parameter.grad = torch.zeros_like(parameter)
        loss = loss_sum(model, batch) / int((batch["labels"] != -100).sum())
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(named.values(), max_grad_norm).item())
        losses.append(loss.item())
        optimizer.step()
    check_finite(losses + norms)
    return {"loss": losses, "grad_norm": norms, "final": {name: fingerprint(before[name], p.detach()) for name, p in named.items()}}


def make(root, name, seed):
    base, options = ADAPTERS[name]
    classifies = "classification" in base
    kind = AutoModelForSequenceClassification if classifies else AutoModelForCausalLM
    torch.manual_seed(seed)
    model = get_peft_model(kind.from_pretrained(root / base, dtype=torch.float32),
                           LoraConfig(task_type="SEQ_CLS" if classifies else "CAUSAL_LM", **options))
    with torch.no_grad():  # B would be zero, and hide half of the terms
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                parameter.normal_(std=0.1)
    model.peft_config["default"].base_model_name_or_path = base
    directory = root / "lora" / name
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    (directory / "README.md").unlink()
    batches = batches_of(root / base)
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=batches[0]["input_ids"][:4], attention_mask=batches[0]["attention_mask"][:4]).logits
    save_file({"logits": logits.contiguous()}, directory / "expected.safetensors")
    max_grad_norm = middle_norm(model, batches)
    expected = train(model, batches, max_grad_norm) | {"training": TRAINING | {"max_grad_norm": max_grad_norm}}
    with torch.no_grad():
        expected["eval_loss"] = loss_sum(model, batches[0]).item() / int((batches[0]["labels"] != -100).sum())
    write_json(directory / "expected.json", expected)
    clipped = sum(norm > max_grad_norm for norm in expected["grad_norm"])
    print(name, "loss", expected["loss"][0], "->", expected["loss"][-1], "norms", expected["grad_norm"][0], "clipped", clipped)
    assert 0 < clipped < STEPS, "clipping must be active, and not always"


def main():
    root = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    for seed, name in enumerate(ADAPTERS, start=100):
        make(root, name, seed)


if __name__ == "__main__":
    main()
