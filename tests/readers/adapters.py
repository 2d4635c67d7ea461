# SPDX-License-Identifier: MIT
"""Adapters: peft opens what a run writes, with the logits of what tessera-checkpoint merges; a run goes on from what peft has written.

Usage: adapters.py SOURCE_ROOT BIN_FOLDER, in the environment that run.sh makes.
"""
import json
import pathlib
import shutil
import sys
import tempfile
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / "tests/programs"))
from support import ROOT, Checker, launch, read_events  # noqa: E402

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_adapters_"))
fixtures = ROOT / "tests/parity/huggingface"
ids = torch.randint(4, 61, (2, 9), generator=torch.Generator().manual_seed(0))
(folder / "classes.jsonl").write_text("".join(json.dumps({"input_ids": [4 + (7 * row + i) % 50 for i in range(5 + row)], "labels": row % 4}) + "\n"
                                              for row in range(8)))


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


def train(name, program, base, *flags):
    result = launch(program, ["--model", str(fixtures / base), "--output_dir", str(folder / name), "--max_seq_length", "14", "--max_steps", "4",
                              "--per_device_train_batch_size", "4", "--learning_rate", "5e-2", *flags])
    check.that(result.code == 0, f"{name} trains", result)
    return folder / name


def merged(base, adapter, name):
    result = launch("tessera-checkpoint", ["merge", str(fixtures / base), str(adapter), str(folder / name)])
    check.that(result.code == 0, f"{name} is written", result)
    return folder / name


ROWS = ["--random_rows", "24"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
for base, program, kind, flags in [
        ("causal", "tessera-finetune-causal", AutoModelForCausalLM, [*ROWS, "--lora_target_modules", "all-linear"]),
        ("gpt2", "tessera-finetune-causal", AutoModelForCausalLM, [*ROWS, "--lora_modules_to_save", "ln_f", "--ranks", "2", "--strategy", "zero3"]),
        ("llama", "tessera-finetune-causal", AutoModelForCausalLM, [*ROWS, "--use_rslora", "--lora_target_modules", "all-linear"]),
        ("gpt_oss", "tessera-finetune-causal", AutoModelForCausalLM, [*ROWS, "--lora_target_modules", "q_proj", "--lora_target_parameters", ",".join(EXPERTS)]),
        ("mixtral", "tessera-finetune-causal", AutoModelForCausalLM, [*ROWS, "--lora_target_parameters", ",".join(EXPERTS), "--ranks", "2", "--strategy", "fsdp"]),
        ("qwen3_moe", "tessera-finetune-causal", AutoModelForCausalLM, [*ROWS, "--lora_target_parameters", EXPERTS[1]]),
        ("llama_classification", "tessera-finetune-classification", AutoModelForSequenceClassification,
         ["--train_ids", str(folder / "classes.jsonl")])]:
    ours = train(base, program, base, "--lora_r", "4", *flags) / "final"
    plain = kind.from_pretrained(fixtures / base, dtype=torch.float32)
    before = logits(plain)
    seen = logits(PeftModel.from_pretrained(plain, ours))
    check.that(not torch.allclose(seen, before, atol=1e-3), f"{base}: training changed the logits")
    whole = logits(kind.from_pretrained(merged(base, ours, base + "-merged"), dtype=torch.float32))
    check.that(torch.allclose(seen, whole, atol=1e-5, rtol=1e-5), f"{base}: peft's logits are those of the merged model, {(seen - whole).abs().max()}")

# Every layout writes what peft looks for, and nothing else.
names = {}
for layout, data_ranks, flags in [("one rank", 1, []), ("pipeline", 1, ["--ranks", "2", "--strategy", "ddp", "--pipeline_parallel", "2"]),
                                  ("pipeline and fsdp", 2, ["--ranks", "4", "--strategy", "fsdp", "--pipeline_parallel", "2"]),
                                  ("interleaved", 1, ["--ranks", "2", "--strategy", "ddp", "--pipeline_parallel", "2", "--pipeline_schedule", "interleaved", "--pipeline_chunks", "2"]),
                                  ("three axes", 2, ["--ranks", "8", "--strategy", "zero2", "--pipeline_parallel", "2", "--tensor_parallel", "2"])]:
    ours = train(f"layout {layout}", "tessera-finetune-causal", "llama", "--lora_r", "4", *ROWS, "--lora_target_modules", "all-linear",
                 "--per_device_train_batch_size", str(4 // data_ranks), *flags) / "final"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(fixtures / "llama", dtype=torch.float32), ours)
        result = model.load_adapter(ours, "again")
    names[layout] = set(load_file(ours / "adapter_model.safetensors"))
    missing = [key for key in result.missing_keys if "lora" in key]
    check.that(not missing and not result.unexpected_keys and not [one for one in said if "keys" in str(one.message)],
               f"{layout}: missing {missing[:3]}, unexpected {result.unexpected_keys[:3]}, {[str(one.message)[:200] for one in said]}")
    check.that(names[layout] == names["one rank"], f"{layout}: other names than one rank: {names[layout] ^ names['one rank']}")
    seen = logits(model)
    if layout == "one rank":
        reference = seen
    check.that(torch.allclose(seen, reference, atol=1e-4, rtol=1e-4), f"{layout}: one rank's logits, {(seen - reference).abs().max()}")

# And back: what peft saves is where a run begins.
torch.manual_seed(1)
for base, options in [("llama", {}), ("gpt_oss", {"target_modules": ["o_proj"], "target_parameters": EXPERTS}), ("olmoe", {"target_parameters": EXPERTS[:1]})]:
    plain = lambda: AutoModelForCausalLM.from_pretrained(fixtures / base, dtype=torch.float32)
    model = get_peft_model(plain(), LoraConfig(r=3, task_type="CAUSAL_LM", **options))
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder / f"theirs {base}")
    further = train(f"further {base}", "tessera-finetune-causal", base, *ROWS, "--adapter", str(folder / f"theirs {base}"), "--learning_rate", "0")
    start = next(event for event in read_events(check, further) if event["event"] == "run_start")
    check.that(start["num_trainable_parameters"] == model.get_nb_trainable_parameters()[0], f"as many parameters are trained: {start}")
    again = logits(PeftModel.from_pretrained(plain(), further / "final"))
    check.that(torch.equal(again, logits(model)), f"{base}: without a learning rate it is the same adapter")
shutil.rmtree(folder)
check.finish()
