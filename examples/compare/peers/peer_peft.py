# SPDX-License-Identifier: MIT
"""Adapters of PEFT on a frozen base, trained by transformers.Trainer: one process or data parallel."""
import peer_common
from peer_hf import train


def run(work, torch, transformers, _, peft):
    # Without a gradient a base in 16 bits loses nothing, and PEFT keeps its adapters in fp32 beside it.
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(work.dtype, torch.float32)
    base = peer_common.load_model(work, transformers, dtype)
    if work.gradient_checkpointing:
        base.enable_input_require_grads()
    targets = [name for name in work.lora_target_modules.split(",") if name]
    parameters = [name for name in work.lora_target_parameters.split(",") if name]
    saved = [name for name in work.lora_modules_to_save.split(",") if name]
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=work.lora_r, lora_alpha=work.lora_alpha, lora_dropout=work.lora_dropout,
                             use_rslora=work.use_rslora, target_modules="all-linear" if targets == ["all-linear"] else targets or None,
                             target_parameters=parameters or None, modules_to_save=saved or None)
    train(work, torch, transformers, peft.get_peft_model(base, config), {"peft_version": peft.__version__})


if __name__ == "__main__":
    peer_common.main(run, "accelerate", "peft")
