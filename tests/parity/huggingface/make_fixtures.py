# SPDX-License-Identifier: MIT
"""Makes the fixtures of this folder with transformers and torch: tiny directories of every family and the numbers they must give.

Usage: make_fixtures.py OUTPUT_DIRECTORY [NAME...], all or those of these names. Made with transformers 5.23 (qwen2_moe and glm4_moe: 5.17), torch 2.11, safetensors 0.8; the suite reads only the results.
"""
import json
import math
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, AutoModelForSequenceClassification, BloomConfig, BloomForCausalLM,
                          BloomForSequenceClassification, GptOssConfig, GptOssForCausalLM, GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, LlamaForSequenceClassification, MistralConfig, MistralForCausalLM,
                          MistralForSequenceClassification, MixtralConfig, MixtralForCausalLM, OlmoeConfig, OlmoeForCausalLM,
                          Glm4MoeConfig, Glm4MoeForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM, get_linear_schedule_with_warmup)
from transformers.trainer_pt_utils import get_parameter_names

PAD = 3
STEPS, ROWS, LENGTH = 10, 12, 14
BALANCED_ROWS = 3  # of a micro-batch: means over tokens multiply each other, so the cut matters
Z_FACTOR = 0.02
TRAINING = {"learning_rate": 2e-3, "weight_decay": 0.1, "warmup_steps": 2}


def randomise(model, generator):
    """Weights larger than the initial ones, biases and norms away from 0 and 1, so that every term of the model matters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                parameter.copy_(0.15 * noise)
            else:
                parameter.copy_(parameter + 0.1 * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # it chooses other experts than the scores alone
                buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))


def padded_rows(generator, vocabulary):
    """[ROWS, LENGTH] ids and mask: rows of different lengths, padded left, right, or not at all."""
    ids = torch.full((ROWS, LENGTH), PAD)
    mask = torch.zeros((ROWS, LENGTH), dtype=torch.long)
    for row in range(ROWS):
        length = LENGTH if row % 4 == 0 else int(torch.randint(4, LENGTH, (1,), generator=generator))
        begin = LENGTH - length if row % 3 == 1 else 0
        ids[row, begin:begin + length] = torch.randint(4, vocabulary, (length,), generator=generator)
        mask[row, begin:begin + length] = 1
    return ids, mask


def causal_batch(generator, vocabulary, step):
    """Ragged: a part of each row is supervised, in one row of every second step nothing is."""
    ids, mask = padded_rows(generator, vocabulary)
    labels = ids.masked_fill(mask == 0, -100)
    for row in range(ROWS):
        visible = mask[row].nonzero().flatten()
        ignored = int(torch.randint(0, len(visible) - 1, (1,), generator=generator))
        labels[row, visible[:ignored]] = -100
    if step % 2 == 0:
        labels[step % ROWS] = -100
    shifted = torch.full_like(labels, -100)
    shifted[:, :-1] = labels[:, 1:]
    return {"input_ids": ids, "attention_mask": mask, "labels": shifted}


def classification_batch(generator, vocabulary, num_labels):
    ids, mask = padded_rows(generator, vocabulary)
    ids[5, 6] = PAD  # a pad token inside a row: pooling looks at the rightmost other one
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, num_labels, (ROWS,), generator=generator)}


def loss_sum(model, batch):
    """Sum of the cross-entropy over the batch's targets; labels are shifted already."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), batch["labels"].flatten(), reduction="sum", ignore_index=-100)


def router_losses(model, batch, z_factor):
    """transformers' balance loss times its factor, and the z-loss, of micro-batches of BALANCED_ROWS rows, each times its targets."""
    total = 0
    for first in range(0, ROWS, BALANCED_ROWS):
        part = {key: value[first:first + BALANCED_ROWS] for key, value in batch.items()}
        out = model(input_ids=part["input_ids"], attention_mask=part["attention_mask"], output_router_logits=True)
        real = part["attention_mask"].flatten().bool()
        z = torch.stack([logits[real].logsumexp(-1).square().mean() for logits in out.router_logits]).mean()
        targets = int((part["labels"] != -100).sum())
        total = total + targets * (model.config.router_aux_loss_coef * out.aux_loss + z_factor * z)
    return total


def decay_names(model):
    """The names transformers' Trainer lets decay."""
    forbidden = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
    own = dict(model.named_parameters())  # a tied head appears in the list, but is the embedding
    return [name for name in get_parameter_names(model, [torch.nn.LayerNorm], forbidden) if name in own]


def without_key_bias(name, value, heads):
    """The key bias has no influence on the model: its gradient is rounding noise, which Adam turns into full steps."""
    if name.endswith("query_key_value.bias"):
        return value.reshape(heads, 3, -1)[:, [0, 2]].flatten()
    if name.endswith("c_attn.bias"):
        return value.reshape(3, -1)[[0, 2]].flatten()
    return value.flatten()


def stored_name(model, name):
    """Mixtral's files have their own folder of experts."""
    return name.replace(".mlp.", ".block_sparse_moe.") if model.config.model_type == "mixtral" else name


def fingerprint(name, before, after, heads):
    before, after = (without_key_bias(name, t.double(), heads) for t in (before, after))
    probe = torch.cos(torch.arange(after.numel(), dtype=torch.float64))
    return {"norm": after.norm().item(), "change": (after - before).norm().item(), "probe": ((after - before) * probe).sum().item()}


def train(model, batches, max_grad_norm, z_factor):
    """One update per batch, as torch and transformers do it, with the loss divided once by the batch's target count."""
    decaying = set(decay_names(model))
    named = dict(model.named_parameters())
    groups = [{"params": [p for n, p in named.items() if n in decaying], "weight_decay": TRAINING["weight_decay"]},
              {"params": [p for n, p in named.items() if n not in decaying], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=TRAINING["learning_rate"], betas=(0.9, 0.999), eps=1e-8)
    schedule = get_linear_schedule_with_warmup(optimizer, TRAINING["warmup_steps"], len(batches))
    before = {name: p.detach().clone() for name, p in named.items()}
    losses, norms, rates = [], [], []
    for batch in batches:
        count = int((batch["labels"] != -100).sum())
        optimizer.zero_grad()
        loss = loss_sum(model, batch) / count
        if getattr(model.config, "output_router_logits", False):
            loss = loss + router_losses(model, batch, z_factor) / count
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm).item())
        losses.append(loss.item())
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    heads = model.config.num_attention_heads
    final = {stored_name(model, name): fingerprint(name, before[name], p.detach(), heads) for name, p in named.items()}
    decay = sorted(stored_name(model, name) for name in decaying)
    return {"loss": losses, "grad_norm": norms, "learning_rate": rates, "decay": decay, "final": final}


def check_finite(values):
    assert all(math.isfinite(v) for v in values), values


def write_json(path, value):
    path.write_text(json.dumps(value, indent=None, separators=(",", ":")) + "\n")


def write_training(directory, model, batches, max_grad_norm, rows=ROWS, z_factor=0.0):
    """batches.safetensors, expected.safetensors (logits of the first rows of the first batch before training) and expected.json beside
    the model."""
    stacked = {key: torch.stack([b[key] for b in batches]).to(torch.int16) for key in batches[0]}
    save_file(stacked, directory / "batches.safetensors")
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=batches[0]["input_ids"], attention_mask=batches[0]["attention_mask"]).logits
    save_file({"logits": logits[:rows].contiguous()}, directory / "expected.safetensors")
    expected = train(model, batches, max_grad_norm, z_factor) | {"training": TRAINING | {"max_grad_norm": max_grad_norm}}
    with torch.no_grad():
        predicted = model(input_ids=batches[0]["input_ids"], attention_mask=batches[0]["attention_mask"]).logits.argmax(-1)
        expected["eval_loss"] = loss_sum(model, batches[0]).item() / int((batches[0]["labels"] != -100).sum())
        if predicted.dim() == 1:
            expected["eval_correct"] = int((predicted == batches[0]["labels"]).sum())
    check_finite(expected["loss"] + expected["grad_norm"])
    write_json(directory / "expected.json", expected)
    print(directory.name, "loss", expected["loss"][0], "->", expected["loss"][-1], "norms", expected["grad_norm"])


def make_causal(root):
    generator = torch.Generator().manual_seed(1)
    config = BloomConfig(vocab_size=61, hidden_size=42, n_layer=2, n_head=6, pad_token_id=PAD)
    model = BloomForCausalLM(config)
    randomise(model, generator)
    model.save_pretrained(root / "causal")
    write_training(root / "causal", model, [causal_batch(generator, 61, step) for step in range(STEPS)], max_grad_norm=2.0)


def make_classification(root):
    generator = torch.Generator().manual_seed(2)
    config = BloomConfig(vocab_size=61, hidden_size=36, n_layer=2, n_head=3, pad_token_id=PAD,
                         apply_residual_connection_post_layernorm=True,
                         id2label={0: "World", 1: "Sports", 2: "Business", 3: "Sci/Tech"})
    model = BloomForSequenceClassification(config)
    randomise(model, generator)
    model.save_pretrained(root / "classification")
    write_training(root / "classification", model, [classification_batch(generator, 61, 4) for _ in range(STEPS)], max_grad_norm=3.5)


LABELS = {0: "World", 1: "Sports", 2: "Business", 3: "Sci/Tech"}
GPT2 = {"vocab_size": 61, "n_embd": 24, "n_head": 4, "n_positions": 16, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
LLAMA = {"vocab_size": 61, "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40,
         "max_position_embeddings": 128, "pad_token_id": PAD}
ROPE_LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}


ROPE_YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
ROPE_YARN_BY_KEYS = ROPE_YARN | {"factor": 2.0, "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False, "attention_factor": 1.2}


def make_others(root, wanted):
    """All but BLOOM; dropout off, for nobody else draws torch's random numbers. Windows are shorter than rows, or longer."""
    rope_linear = {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}
    rope_default = {"rope_type": "default", "rope_theta": 100.0}
    sliding = {"use_sliding_window": True, "layer_types": ["sliding_attention", "sliding_attention"]}
    models = {
        "gpt2": (GPT2LMHeadModel, GPT2Config(**GPT2, n_layer=2, scale_attn_by_inverse_layer_idx=True), 1.65),
        "gpt2_classification": (GPT2ForSequenceClassification, GPT2Config(**GPT2, n_layer=1, n_inner=40, id2label=LABELS), 3.0),
        "llama": (LlamaForCausalLM, LlamaConfig(**LLAMA, num_hidden_layers=2, head_dim=8, rope_parameters=ROPE_LLAMA3), 1.95),
        "llama_tied": (LlamaForCausalLM, LlamaConfig(**LLAMA, num_hidden_layers=1, tie_word_embeddings=True, attention_bias=True,
                                                     mlp_bias=True, rms_norm_eps=1e-5), 1.6),
        "llama_classification": (LlamaForSequenceClassification,
                                 LlamaConfig(**LLAMA, num_hidden_layers=1, rope_parameters=rope_linear, id2label=LABELS), 4.6),
        "mistral": (MistralForCausalLM, MistralConfig(**LLAMA, num_hidden_layers=2, sliding_window=4, head_dim=8,
                                                      rope_parameters=rope_default), 1.7),
        "mistral_classification": (MistralForSequenceClassification,
                                   MistralConfig(**LLAMA, num_hidden_layers=1, sliding_window=None, id2label=LABELS), 4.0),
        "qwen2": (Qwen2ForCausalLM, Qwen2Config(**LLAMA, num_hidden_layers=2, use_sliding_window=True, sliding_window=5, max_window_layers=1,
                                                rope_parameters=rope_default), 1.8),
        "qwen2_tied": (Qwen2ForCausalLM, Qwen2Config(**LLAMA, num_hidden_layers=1, tie_word_embeddings=True,
                                                     rope_parameters=ROPE_YARN_BY_KEYS), 1.8),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config(**LLAMA, num_hidden_layers=2, head_dim=10, tie_word_embeddings=True, sliding_window=60,
                                                rope_parameters=ROPE_YARN, **sliding), 1.7),
        "qwen3_classification": (Qwen3ForSequenceClassification,
                                 Qwen3Config(**LLAMA, num_hidden_layers=1, head_dim=6, attention_bias=True, id2label=LABELS,
                                             rope_parameters=rope_default), 4.0),
        "gpt2_gelu": (GPT2LMHeadModel, GPT2Config(**GPT2, n_layer=1, activation_function="gelu"), 1.2),
        "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**LLAMA, num_hidden_layers=3, head_dim=10, num_experts=6, num_experts_per_tok=3,
                                                          moe_intermediate_size=16, norm_topk_prob=True, mlp_only_layers=[1]), 1.7),
        "olmoe": (OlmoeForCausalLM, OlmoeConfig(**LLAMA, num_hidden_layers=2, num_experts=5, num_experts_per_tok=2,
                                                eos_token_id=2), 1.7),
        "mixtral": (MixtralForCausalLM, MixtralConfig(**LLAMA, num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2,
                                                      sliding_window=5), 1.7),
        "qwen3_moe_balanced": (Qwen3MoeForCausalLM,
                               Qwen3MoeConfig(**LLAMA, num_hidden_layers=3, head_dim=10, num_experts=6, num_experts_per_tok=2,
                                              moe_intermediate_size=16, norm_topk_prob=True, mlp_only_layers=[1],
                                              output_router_logits=True, router_aux_loss_coef=0.1), 1.7),
        "gpt_oss": (GptOssForCausalLM, GptOssConfig(**LLAMA, num_hidden_layers=2, head_dim=8, num_local_experts=5, num_experts_per_tok=2,
                                                    sliding_window=5, rope_parameters=ROPE_YARN | {"truncate": False},
                                                    attn_implementation="eager"), 1.7),
        "qwen2_moe": (Qwen2MoeForCausalLM, Qwen2MoeConfig(**LLAMA, num_hidden_layers=3, num_experts=6, num_experts_per_tok=3,
                                                          moe_intermediate_size=16, shared_expert_intermediate_size=28, mlp_only_layers=[1],
                                                          use_sliding_window=True, sliding_window=5, max_window_layers=2,
                                                          rope_parameters=rope_default), 1.7),
        "glm4_moe": (Glm4MoeForCausalLM, Glm4MoeConfig(**LLAMA, num_hidden_layers=3, head_dim=8, n_routed_experts=6, num_experts_per_tok=3,
                                                       moe_intermediate_size=16, n_shared_experts=2, first_k_dense_replace=1,
                                                       routed_scaling_factor=1.5, attention_bias=True, use_qk_norm=True,
                                                       rope_parameters=rope_default | {"partial_rotary_factor": 0.5}), 1.7)}
    for seed, (name, (make, config, max_grad_norm)) in enumerate(models.items(), start=10):
        if name not in wanted:
            continue
        generator = torch.Generator().manual_seed(seed)
        model = make(config)
        randomise(model, generator)
        model.save_pretrained(root / name)
        batches = [classification_batch(generator, 61, 4) if config.id2label == LABELS else causal_batch(generator, 61, step)
                   for step in range(STEPS)]
        write_training(root / name, model, batches, max_grad_norm, rows=4, z_factor=Z_FACTOR if name.endswith("_balanced") else 0.0)


def rename(path, change):
    """Rewrites a safetensors file with other names."""
    save_file({change(name): tensor for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})


def make_variants(root):
    """One directory for each way in which weights and config.json are found in the wild."""
    generator = torch.Generator().manual_seed(3)
    ids, mask = (t[:3].contiguous() for t in padded_rows(generator, 61))
    for name in ("bare_fp16", "sharded_bf16", "untied", "stored_head", "hub_config"):
        config = BloomConfig(vocab_size=61, hidden_size=20, n_layer=1, n_head=5, pad_token_id=PAD, tie_word_embeddings=name != "untied")
        model = BloomForCausalLM(config)
        randomise(model, generator)
        directory = root / "variants" / name
        if name == "bare_fp16":  # as the Hub's BLOOM: no prefix, no head
            model.half().save_pretrained(directory)
            rename(directory / "model.safetensors", lambda n: n.removeprefix("transformer."))
        elif name == "sharded_bf16":
            model.bfloat16().save_pretrained(directory, max_shard_size="3KB")
        else:
            model.save_pretrained(directory)
        if name == "stored_head":
            tensors = load_file(directory / "model.safetensors")
            tensors["lm_head.weight"] = tensors["transformer.word_embeddings.weight"].clone()
            save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        if name == "hub_config":
            saved = json.loads((directory / "config.json").read_text())
            saved.pop("dtype", None)
            hub = {"n_embed": saved.pop("hidden_size"), "num_attention_heads": saved.pop("n_head"), "n_inner": None,
                   "num_hidden_layers": saved.pop("n_layer"), "torch_dtype": "float32", "offset_alibi": 100, "masked_softmax_fusion": True}
            write_json(directory / "config.json", saved | hub)
        loaded = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = loaded(input_ids=ids, attention_mask=mask).logits
        save_file({"input_ids": ids, "attention_mask": mask, "logits": logits.contiguous()}, directory / "expected.safetensors")


def make_mxfp4(root):
    """gpt-oss as its files on the Hub: experts in MXFP4, every code and many scales, and the values of transformers' own function."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    generator = torch.Generator().manual_seed(5)
    config = GptOssConfig(**LLAMA | {"hidden_size": 32, "intermediate_size": 64}, num_hidden_layers=1, head_dim=8, num_local_experts=3,
                          num_experts_per_tok=2, rope_parameters=ROPE_YARN, attn_implementation="eager")
    model = GptOssForCausalLM(config)
    randomise(model, generator)
    directory = root / "gpt_oss_mxfp4"
    model.save_pretrained(directory)
    tensors, expected = load_file(directory / "model.safetensors"), {}
    experts = model.model.layers[0].mlp.experts
    for name in ("gate_up_proj", "down_proj"):
        full = f"model.layers.0.mlp.experts.{name}"
        count, inputs, outputs = getattr(experts, name).shape
        del tensors[full]
        blocks = torch.randint(0, 256, (count, outputs, inputs // 32, 16), generator=generator).to(torch.uint8)
        scales = torch.randint(120, 128, blocks.shape[:-1], generator=generator).to(torch.uint8)
        tensors[full + "_blocks"], tensors[full + "_scales"] = blocks, scales
        value = convert_moe_packed_tensors(blocks, scales)
        assert value.shape == getattr(experts, name).shape
        getattr(experts, name).data.copy_(value)
        expected[full] = value
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    # Every scale that is a number, and every byte of codes.
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 1, 16).expand(255, 16, 1, 16).contiguous()
    scales = torch.arange(255, dtype=torch.uint8).view(255, 1, 1).expand(255, 16, 1).contiguous()
    decoded = convert_moe_packed_tensors(blocks, scales)
    saved = json.loads((directory / "config.json").read_text())
    write_json(directory / "config.json", saved | {"quantization_config": {"quant_method": "mxfp4"}})
    ids, mask = (t[:3].contiguous() for t in padded_rows(generator, 61))
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits
    save_file({"input_ids": ids, "attention_mask": mask, "logits": logits.contiguous(), "blocks": blocks, "scales": scales,
               "decoded": decoded} | expected, directory / "expected.safetensors")


BLOOM = {"causal": make_causal, "classification": make_classification, "variants": make_variants, "gpt_oss_mxfp4": make_mxfp4}
OTHERS = ("gpt2", "gpt2_classification", "llama", "llama_tied", "llama_classification", "mistral", "mistral_classification", "qwen2",
          "qwen2_tied", "qwen3", "qwen3_classification", "gpt2_gelu", "qwen3_moe", "olmoe", "mixtral", "gpt_oss",
          "qwen3_moe_balanced", "qwen2_moe", "glm4_moe")


def main():
    root = pathlib.Path(sys.argv[1])
    wanted = sys.argv[2:] or [*BLOOM, *OTHERS]
    for name in wanted:
        shutil.rmtree(root / name, ignore_errors=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name, make in BLOOM.items():
        if name in wanted:
            make(root)
    make_others(root, wanted)
    for extra in root.rglob("generation_config.json"):
        extra.unlink()


if __name__ == "__main__":
    main()
