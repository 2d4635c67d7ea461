# SPDX-License-Identifier: MIT
"""Trains PEFT adapters of tiny exported models beside PEFT, and passes the adapters both ways.

Usage: PYTHONPATH=python lora_families.py CHECKER [--keep DIRECTORY] [FAMILY...]. The checker is the program exported_lora. It reads PEFT's adapter of
each exported directory, trains 20 steps under every layout and writes the trained adapter, which PEFT loads here. One JSON line a family with the
largest relative differences of losses, of trained tensors and of the logits of the adapter that was passed back. Exit code 1 where one is above 1e-5.
Logits may differ by twice PEFT's own rounding, where that is more: its logits in fp32 beside those of a whole run in fp64. Needs torch 2.11,
transformers 5.24, peft 0.21, safetensors.
"""
import argparse
import copy
import json
import logging
import pathlib
import subprocess
import sys
import tempfile
import warnings

import torch

from export_families import EAGER, made_model, reference, relative
from program_lora import adapted, train_adapter

ALL = {"r": 3, "target_modules": "all-linear"}
# PEFT's all-linear adds adapters of the experts' stacked parameters (target_parameters), which are no linear layers.
ATTENTION = {"r": 3, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
# Options of LoraConfig: PEFT's defaults where there are no targets, every linear layer, layers by name, trained modules.
FAMILIES = {
    "llama": {"r": 4, "lora_alpha": 16},
    "gemma3_text": {**ALL, "init_lora_weights": "gaussian"},
    "gpt2": {**ALL, "modules_to_save": ["ln_f"]},
    "gpt_neox": ALL,
    "falcon": {**ALL, "use_rslora": True},
    "bloom": {"r": 4},
    "phi3": {"r": 3, "lora_alpha": 5, "target_modules": ["qkv_proj", "down_proj"]},
    "phi": ALL,
    "opt": ALL,
    "olmoe": ATTENTION,
    "qwen2_moe": ATTENTION,
    "deepseek_v3": {"r": 3, "target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]},
    "starcoder2": {**ALL, "modules_to_save": ["norm"]},
    "jetmoe": ALL,
    "lfm2": ALL,
    "gpt_oss": ATTENTION,
    "llama_head": {"r": 2, "target_modules": ["lm_head", "gate_proj"]},
}
BASES = {"llama_head": "llama"}
BOUND = 1e-5


def exported(name, folder):
    """The program's directory, made where there is none."""
    import transformers

    from tessera.export import export_pretrained

    family = BASES.get(name, name)
    if not (folder / "program.json").exists():
        with tempfile.TemporaryDirectory() as source:
            made_model(family).save_pretrained(source)
            export_pretrained(source, folder, dtypes=("fp32",), attention="eager" if family in EAGER else None, weights="copy", force=True)
        reference(family, made_model(family), folder)
    options = {"attn_implementation": "eager"} if family in EAGER else {}
    return lambda: transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)


def logits_of(model, folder):
    ids = torch.tensor(json.loads((folder / "reference.json").read_text())["batches"][0]["input_ids"])
    with torch.no_grad():
        return model.eval()(input_ids=ids, use_cache=False).logits


def rounding_of(exact, logits, folder):
    """Relative difference of these logits from those of the same run in fp64. The adapter's files in the folder are replaced."""
    train_adapter(exact, folder)
    return relative(logits, logits_of(exact, folder))


def try_family(name, root, checker):
    from peft import PeftModel
    from safetensors.torch import load_file

    folder = root / name
    load = exported(name, folder)
    model = adapted(load().train(), 7, **FAMILIES[name])
    untrained = copy.deepcopy(model)
    final = train_adapter(model, folder)
    done = subprocess.run([checker, folder, folder / "returned"], capture_output=True, text=True, check=False)
    line = {"family": name, "options": FAMILIES[name], "trained": len(final)}
    if done.returncode != 0:
        return {**line, "result": "different", "cpp": (done.stdout + done.stderr).strip()[-400:]}
    line |= json.loads(done.stdout.strip().splitlines()[-1])
    back = load_file(folder / "returned/adapter_model.safetensors")
    line["missing"] = sorted(set(final) ^ set(back))
    if not line["missing"]:
        line["tensors"] = max(relative(back[key], value) for key, value in final.items())
        returned = PeftModel.from_pretrained(load(), folder / "returned")
        line["logits"] = relative(logits_of(returned, folder), logits_of(model, folder))
        line["allowed"] = BOUND
        if line["logits"] > BOUND:
            line["allowed"] = max(BOUND, 2 * rounding_of(untrained.double(), logits_of(model, folder), folder))
    equal = not line["missing"] and max(line["loss"], line["tensors"]) <= BOUND and line["logits"] <= line["allowed"]
    return {**line, "result": "equal" if equal else "different"}


def main():
    import transformers

    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("checker")
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    parser.add_argument("--keep", type=pathlib.Path)
    given = parser.parse_intermixed_args()
    equal = True
    with tempfile.TemporaryDirectory() as temporary:
        for name in given.families or FAMILIES:
            line = try_family(name, given.keep or pathlib.Path(temporary), given.checker)
            equal = equal and line["result"] == "equal"
            print(json.dumps(line), flush=True)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
