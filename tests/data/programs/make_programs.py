# SPDX-License-Identifier: MIT
"""Makes the exported programs of this folder, and the losses and gradients that training them must give.

Usage: PYTHONPATH=python:tests/python make_programs.py OUTPUT_DIRECTORY [NAME...]. Made with torch 2.11, transformers 5.24; the suite reads only
the results. tests/python/program_reference.py says what reference.json holds.
"""
import json
import pathlib
import sys
import tempfile
import warnings

import torch
from torch import nn

from program_reference import STEPS, causal_batches, randomise, train, write_reference

from tessera.export import export_module, export_pretrained
from tessera.export.models import DTYPES

VOCABULARY = 96
OPTIMIZERS = ("adamw", "sgd")
BASE = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {
    "llama": ({"model_type": "llama", **BASE}, None),
    "gemma3": ({"model_type": "gemma3_text", **BASE, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"],
                "query_pre_attn_scalar": 8, "tie_word_embeddings": True}, None),
    "gpt_neox": ({"model_type": "gpt_neox", **BASE, "use_parallel_residual": True, "hidden_dropout": 0.0, "attention_dropout": 0.0}, None),
    "olmoe": ({"model_type": "olmoe", **BASE, "num_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True,
               "router_aux_loss_coef": 0.01}, None),
    "qwen2_moe": ({"model_type": "qwen2_moe", **BASE, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1,
                   "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24}, None),
    "phi3": ({"model_type": "phi3", **BASE, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0}, None),
    "gpt_oss": ({"model_type": "gpt_oss", **BASE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6,
                 "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": False}, "eager"),
    "gemma2": ({"model_type": "gemma2", **BASE, "hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1, "sliding_window": 6,
                "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0}, "eager"),
    "mpt": ({"model_type": "mpt", "vocab_size": VOCABULARY, "d_model": 24, "n_layers": 2, "n_heads": 3, "expansion_ratio": 2, "max_seq_len": 64},
            "eager"),
    "llama_masked": ({"model_type": "llama", **BASE, "hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1}, None),
    "llama_bf16": ({"model_type": "llama", **BASE, "hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1}, None),
}


def make_family(name, out):
    import transformers

    transformers.logging.set_verbosity_error()
    settings, attention = FAMILIES[name]
    dtype = "bf16" if name.endswith("_bf16") else "fp32"
    options = {"dtype": DTYPES[dtype], **({"attn_implementation": attention} if attention else {})}
    with tempfile.TemporaryDirectory() as folder:
        config = transformers.AutoConfig.for_model(**settings)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, **options)
        randomise(model, torch.Generator().manual_seed(1))
        model.save_pretrained(folder)
        export_pretrained(folder, out, dtypes=(dtype,), attention=attention, weights="copy", force=True, say=print,
                          more_inputs=("attention_mask",) if name.endswith("_masked") else ())

        def load():
            return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).train()

        def loss_of(module, batch, _):
            return module(input_ids=batch["input_ids"], labels=batch["labels"], use_cache=False).loss

        batches = causal_batches(torch.Generator().manual_seed(2), VOCABULARY)
        results = {kind: train(load(), loss_of, batches, kind) for kind in OPTIMIZERS}
    write_reference(out, f"{name}: losses of transformers {transformers.__version__}", batches, results)


def make_classifier(name, out):
    """A decoder that gives each row's class at its last token; rows are padded behind."""
    import transformers

    transformers.logging.set_verbosity_error()
    settings = {**BASE, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "num_labels": 3}
    generator = torch.Generator().manual_seed(6)
    batches = []
    for _ in range(STEPS):
        ids = torch.randint(3, VOCABULARY, (4, 11), generator=generator)
        for row in range(4):
            ids[row, int(torch.randint(4, 12, (1,), generator=generator)):] = 0
        batches.append({"input_ids": ids, "labels": torch.randint(0, 3, (4,), generator=generator)})
    with tempfile.TemporaryDirectory() as folder:
        model = transformers.AutoModelForSequenceClassification.from_config(transformers.AutoConfig.for_model("llama", **settings), dtype=torch.float32)
        randomise(model, torch.Generator().manual_seed(7))
        model.save_pretrained(folder)
        export_pretrained(folder, out, dtypes=("fp32",), task="classification", weights="copy", force=True, say=print)

        def load():
            return transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).train()

        def loss_of(module, batch, _):
            return module(**batch, use_cache=False).loss

        results = {kind: train(load(), loss_of, batches, kind) for kind in OPTIMIZERS}
    write_reference(out, f"{name}: losses of transformers {transformers.__version__}", batches, results)


class Block(nn.Module):
    """A residual block with BatchNorm and dropout."""

    def __init__(self, width, rate):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(rate)

    def forward(self, x):
        return x + self.drop(torch.relu(self.norm(self.linear(x))))


class Toy(nn.Module):
    """A classifier of rows: the sum of the cross-entropy and the count of the rows; a buffer counts the rows that it has seen."""

    def __init__(self, inputs=12, width=16, classes=5, layers=2, rate=0.25):
        super().__init__()
        self.embed = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(Block(width, rate) for _ in range(layers))
        self.head = nn.Linear(width, classes)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, inputs), persistent=False)
        self.register_buffer("rows_seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x, labels):
        if self.training:
            self.rows_seen += x.shape[0]
        hidden = self.embed(x * self.scale)
        for block in self.blocks:
            hidden = block(hidden)
        losses = nn.functional.cross_entropy(self.head(hidden), labels, reduction="none")
        return losses.sum(), torch.ones_like(losses).sum()


def make_toy(name, out):
    generator = torch.Generator().manual_seed(3)
    batches = [{"x": torch.randn(6 - step % 2, 12, generator=generator), "labels": torch.randint(0, 5, (6 - step % 2,), generator=generator)}
               for step in range(STEPS)]

    def make():
        torch.manual_seed(4)
        return Toy()

    def loss_of(module, batch, step):
        torch.manual_seed(100 + step)
        total, count = module(**batch)
        return total / count

    example = {"x": torch.randn(6, 12), "labels": torch.arange(6) % 5}
    export_module(make(), example, {"x": {0: "batch"}, "labels": {0: "batch"}}, out, name=name, force=True, say=print)
    results = {kind: train(make(), loss_of, batches, kind) for kind in OPTIMIZERS}
    write_reference(out, "toy: a module with dropout and BatchNorm; torch.manual_seed(100 + step) stands before step 0, 1, ...; "
                         "loss is loss_sum / count; buffers are those after five steps", batches, results)
    module = make().eval()
    text = json.loads((out / "reference.json").read_text())
    text["eval_loss"] = [float(loss_of(module, batch, 0)) for batch in batches]
    (out / "reference.json").write_text("{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in text.items()) + "\n}\n")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    folder = pathlib.Path(sys.argv[1])
    others = {"classifier": make_classifier, "toy": make_toy}
    for name in sys.argv[2:] or [*FAMILIES, *others]:
        others.get(name, make_family)(name, folder / name)
        print(name, sum(path.stat().st_size for path in (folder / name).iterdir()) // 1024, "KiB")
