# SPDX-License-Identifier: MIT
"""Makes the fixtures of lora/ with adapters of experts' own linear layers, which transformers 4 has.

Usage: make_expert_lora.py DIRECTORY, which make_fixtures.py has filled. Made with peft 0.21, transformers 4.57, torch 2.11; the suite reads only the
results.
"""
import json
import pathlib
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import create_causal_mask
from transformers.models.olmoe.modeling_olmoe import OlmoeModel

import make_lora

# Name: base, LoraConfig's options. all-linear would add the router, which is trained whole or not at all here.
ADAPTERS = {
    "qwen3_moe_experts": ("qwen3_moe", {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"]}),
    "olmoe_experts": ("olmoe", {"r": 2, "use_rslora": True, "lora_alpha": 3,
                                "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}),
    "mixtral_experts": ("mixtral", {"r": 4, "target_modules": ["v_proj", "w3", "w2"], "modules_to_save": ["norm"]}),
}


def read_base(path, dtype):
    """A base in the file form of transformers 5, whose configuration has other keys."""
    config = AutoConfig.from_pretrained(path)
    written = json.loads((path / "config.json").read_text())
    config.rope_theta = written["rope_parameters"]["rope_theta"]
    config.num_experts = written.get("num_local_experts") or written["num_experts"]
    return AutoModelForCausalLM.from_pretrained(path, config=config, dtype=dtype)


def newer_mask(self, attention_mask, hidden, cache_position, past_key_values, output_attentions):
    """OLMoE's own mask lets padding before a row see all tokens; version 5 has this one for every model."""
    return create_causal_mask(config=self.config, input_embeds=hidden, attention_mask=attention_mask, cache_position=cache_position,
                              past_key_values=past_key_values)


def main():
    OlmoeModel._update_causal_mask = newer_mask
    root = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    make_lora.ADAPTERS = ADAPTERS
    make_lora.AutoModelForCausalLM = type("Reader", (), {"from_pretrained": staticmethod(read_base)})
    for seed, name in enumerate(ADAPTERS, start=200):
        make_lora.make(root, name, seed)


if __name__ == "__main__":
    main()
