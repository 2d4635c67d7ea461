# SPDX-License-Identifier: MIT
"""Makes the adapters beside the programs of this folder, with the numbers of training them in PEFT.

Usage: PYTHONPATH=tests/python make_adapters.py DIRECTORY, which make_programs.py has filled. Made with peft 0.21, transformers 5.24, torch 2.11; the
suite reads only the results. tests/python/program_lora.py says what they hold.
"""
import pathlib
import sys
import warnings

import torch
import transformers

from program_lora import adapted, train_adapter

ADAPTERS = {
    "gpt_neox": {"r": 3, "lora_alpha": 5, "target_modules": "all-linear", "use_rslora": True},
    "olmoe": {"r": 2, "target_modules": ["q_proj", "v_proj", "o_proj"], "modules_to_save": ["norm"]},
}

if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for name, options in ADAPTERS.items():
        folder = pathlib.Path(sys.argv[1]) / name
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
        final = train_adapter(adapted(model, 7, **options), folder)
        print(name, len(final), "tensors", sum(path.stat().st_size for path in (folder / "adapter").iterdir()) // 1024, "KiB")
