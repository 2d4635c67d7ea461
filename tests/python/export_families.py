# SPDX-License-Identifier: MIT
"""Exports tiny models of forty families of transformers' causal mapping and trains each program beside the model itself.

Usage: PYTHONPATH=python export_families.py [--checker exported_parity] [--jobs N] [--keep DIRECTORY] [--table FILE] [FAMILY...]. One JSON line a
family: "equal" with the largest relative differences of five AdamW steps' losses and of all gradients, or "failed" with the reason. The checker is
the program of that name, which trains the exported directory in C++: beside PyTorch, cut and whole, and under every layout; its line adds the
largest relative difference of each, and the regions that became tessera's operators. --jobs runs so many families at once, --keep leaves the
directories there, --table writes the results as a table. Exit code 1 where a result is not what this file says. Needs torch 2.11, transformers 5.24,
safetensors.
"""
import argparse
import concurrent.futures
import json
import logging
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import warnings

import torch

from program_reference import STEPS, causal_batches, randomise, train, write_reference

VOCABULARY = 128
BASE = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "output_router_logits": True, "router_aux_loss_coef": 0.02}
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}

# The families, each with what is its own, and settings beside BASE. The list was written before the first was tried.
FAMILIES = {
    "llama": ("rotary positions, grouped queries, SwiGLU", {}),
    "diffllama": ("differential attention", {"attention_dropout": 0.0}),
    "smollm3": ("layers without positions", {"no_rope_layers": [1, 0]}),
    "granite": ("multipliers of embedding, attention, residual and logits", {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 1.5}),
    "olmo": ("norms without weights, clipped projections", {"clip_qkv": 8.0}),
    "olmo2": ("norms behind the branches, norms of whole queries and keys", {}),
    "qwen3": ("norms of each head's queries and keys", {}),
    "gemma": ("norms with 1 + weight, scaled embedding, tied head", {}),
    "gemma2": ("soft caps, windows, norms on both sides", {**WINDOWS, "query_pre_attn_scalar": 16}),
    "gemma3_text": ("two rotary bases, windows", {**WINDOWS, "query_pre_attn_scalar": 16}),
    "gemma3n_text": ("alternating updates, per-layer inputs, shared keys and values, sparse activations",
                     {**WINDOWS, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "intermediate_size": [96] * 4,
                      "num_kv_shared_layers": 2, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "laurel_rank": 8,
                      "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0]}),
    "gemma4_text": ("per-layer inputs, shared keys and values, head sizes by layer",
                    {**WINDOWS, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
                     "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "global_head_dim": 32}),
    "cohere2": ("parallel residual, norms without bias, layers without positions in between", WINDOWS),
    "starcoder2": ("windows, biases everywhere", {"sliding_window": 8, "residual_dropout": 0.0, "embedding_dropout": 0.0}),
    "stablelm": ("partial rotary positions, LayerNorm", {"partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "nemotron": ("LayerNorm with 1 + weight, squared ReLU", {"partial_rotary_factor": 0.5}),
    "phi": ("parallel residual, partial rotary positions, biases", {**NO_DROPOUT, "partial_rotary_factor": 0.5}),
    "phi3": ("fused projections", NO_DROPOUT),
    "gpt2": ("learned positions, transposed projections", {**NO_DROPOUT, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "gpt_neo": ("local and global attention without scaling", {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8,
                                                                "resid_dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0}),
    "gptj": ("interleaved rotary positions, one norm for both branches", {**NO_DROPOUT, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}),
    "gpt_neox": ("parallel residual, queries, keys and values in one", {}),
    "gpt_bigcode": ("one head of keys and values", {**NO_DROPOUT, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "bloom": ("attention with linear biases, a norm behind the embedding", {"n_layer": 2, "n_head": 4}),
    "mpt": ("linear biases, no bias in norms", {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 128}),
    "falcon": ("parallel residual, one norm, one head of keys", {"head_dim": None, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False}),
    "opt": ("learned positions with an offset", {"ffn_dim": 96, "word_embed_proj_dim": 64, "dropout": 0.0}),
    "xglm": ("sinusoidal positions", {"d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4, "dropout": 0.0, "attention_dropout": 0.0, "layerdrop": 0.0}),
    "biogpt": ("learned positions, scaled embedding", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layerdrop": 0.0}),
    "mixtral": ("experts with balance loss", {**EXPERTS, "num_local_experts": 4}),
    "olmoe": ("experts, norms of queries and keys, balance loss", EXPERTS),
    "qwen2_moe": ("a shared expert, balance loss", {**EXPERTS, "shared_expert_intermediate_size": 48}),
    "qwen3_moe": ("experts, balance loss, normed probabilities", {**EXPERTS, "norm_topk_prob": True}),
    "gpt_oss": ("attention sinks, windows, experts with biases", {**WINDOWS, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v3": ("latent attention, groups of experts, a bias that only routes",
                    {"head_dim": 8, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4,
                     "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "num_key_value_heads": 4}),
    "jetmoe": ("experts of attention", {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 16, "num_key_value_heads": 2,
                                        "num_attention_heads": 4}),
    "lfm2": ("hybrid: short convolutions and attention", {"layer_types": ["conv", "full_attention"]}),
    "mamba": ("state space, no attention", {"state_size": 8, "num_hidden_layers": 2}),
    "jamba": ("hybrid: state space, attention, experts", {"num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8,
                                                          "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False}),
    "qwen3_next": ("hybrid: gated delta rule, gated attention, experts",
                   {**EXPERTS, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
                    "linear_value_head_dim": 8, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1}),
}
EAGER = {"gpt_oss", "bloom"}
# At the others' rate its loss rises, and rounding of the first steps shows in the last: 2e-5 on one CPU, 3e-6 on another.
SMALL_STEPS = {"gemma4_text"}
# What cannot be exported, and a part of the reason that is given.
REFUSED = {"mamba": "becomes a constant", "jamba": "becomes a constant", "gemma3n_text": "weight"}
assert len(FAMILIES) == 40


def batches():
    """Rows of random tokens; those of the last step are longer than a chunk of 64."""
    generator = torch.Generator().manual_seed(5)
    for step in range(STEPS):
        yield torch.randint(3, VOCABULARY, (3, 21 + step if step + 1 < STEPS else 100), generator=generator)


def relative(mine, theirs):
    scale = theirs.double().norm().item()
    return (mine.double() - theirs.double()).norm().item() / scale if scale > 1e-12 else mine.double().norm().item()


def difference_of_gradients(mine, theirs):
    """The largest relative difference; a gradient below a hundredth of the whole norm is rounding of larger ones and is measured by that."""
    pairs = [[torch.zeros_like(value) if value.grad is None else value.grad.double() for value in (mine[name], theirs[name])] for name in theirs]
    whole = sum(their.norm().item() ** 2 for _, their in pairs) ** 0.5
    return max((own - their).norm().item() / max(their.norm().item(), 0.01 * whole) for own, their in pairs)


def train_both(model, folder):
    """The largest relative differences of losses and gradients over five steps of AdamW."""
    from safetensors.torch import load_file

    from tessera.export.interpreter import Interpreter

    manifest = json.loads((folder / "program.json").read_text())
    run = Interpreter(json.loads((folder / manifest["programs"][0]["file"]).read_text()))
    constants = load_file(folder / "program.constants.safetensors")
    prefix = "float32.train/"
    constants |= {name.removeprefix(prefix): value for name, value in constants.items() if name.startswith(prefix)}
    theirs = dict(model.named_parameters())
    mine = {name: value.detach().clone().requires_grad_(value.requires_grad) for name, value in theirs.items()}
    ties = {row["name"]: row["same_as"] for row in manifest["parameters"] if row["same_as"]}
    optimizers = [torch.optim.AdamW(values.values(), lr=1e-3) for values in (theirs, mine)]
    worst_loss = worst_gradient = 0.0
    losses = []
    for ids in batches():
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        outputs = run({**constants, **mine, **{name: mine[other] for name, other in ties.items()}}, {"input_ids": ids})
        own = torch.nn.functional.cross_entropy(outputs[0][:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        for row, output in zip(manifest["outputs"][1:], outputs[1:]):
            own = own + row["weight"] * output
        loss.backward()
        own.backward()
        worst_loss = max(worst_loss, relative(own.detach(), loss.detach()))
        worst_gradient = max(worst_gradient, difference_of_gradients(mine, theirs))
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
    return {"loss": worst_loss, "gradient": worst_gradient, "losses": losses}


def reference(family, model, folder):
    """Writes reference.json: the model's own training by SGD."""

    def loss_of(training, batch, _):
        return training(input_ids=batch["input_ids"], labels=batch["labels"], use_cache=False).loss

    causal = causal_batches(torch.Generator().manual_seed(2), VOCABULARY)
    write_reference(folder, f"{family}: losses of transformers", causal, {"sgd": train(model, loss_of, causal, "small_sgd" if family in SMALL_STEPS else "sgd")})


def checked(checker, folder):
    """What training in C++ says: "equal" or what differs, the largest relative difference beside each, the regions that were replaced and left."""
    done = subprocess.run([checker, folder], capture_output=True, text=True, check=False)
    said = done.stdout.strip().removeprefix(f"{folder}: ")
    kinds = {kind: re.findall(rf": {kind} (.+)", done.stderr) for kind in ("replaced", "not replaced")}
    if done.returncode:
        return {"cpp": said or done.stderr.strip()[-300:] or f"exit code {done.returncode}"} | kinds
    return {"cpp": "equal", "differences": {name: float(number) for name, number in re.findall(r", ([^,]+) ([\d.e+-]+)(?=,|$)", said)}} | kinds


def tensors_of(form):
    """Names of the tensors of the file that a stored form is made of."""
    if form is None:
        return set()
    return {form} if isinstance(form, str) else set().union(*map(tensors_of, form["of"]))


def unsaved_names(values, saved):
    """Names of the manifest's stored tensors that save_pretrained() does not write, and those it writes beside them."""
    stored = set()
    for row in values["parameters"]:
        stored |= set() if row["same_as"] else tensors_of(row["stored"])
    stored |= {row["stored"] for row in values["buffers"] if row["stored"]}
    return sorted(stored - saved), sorted(saved - stored)


def saved_names(source):
    from safetensors import safe_open

    names = set()
    for file in source.glob("model*.safetensors"):
        with safe_open(file, "pt") as opened:
            names |= set(opened.keys())
    return names


def made_model(family):
    """The tiny model with weights away from their initial ones."""
    import transformers

    _, settings = FAMILIES[family]
    config = transformers.AutoConfig.for_model(family, **{key: value for key, value in {**BASE, **settings}.items() if value is not None})
    torch.manual_seed(0)
    options = {"attn_implementation": "eager"} if family in EAGER else {}
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **options).train()
    randomise(model, torch.Generator().manual_seed(1), 0.08)
    return model


def equal_line(family, model, values, folder, checker):
    """The numbers of an exported family."""
    graph = json.loads((folder / values["programs"][0]["file"]).read_text())["graph_module"]["graph"]
    missing, unused = unsaved_names(values, saved_names(folder))
    trained = made_model(family)
    line = {"result": "equal", "nodes": len(graph["nodes"]), "operators": len({node["target"] for node in graph["nodes"]}), "layers": values["layers"],
            "ranges": values["ranges"], "outputs": [row["name"] for row in values["outputs"]],
            "undrawn": [row["name"] for row in values["parameters"] if row["init"] is None], "missing_names": missing, "unused_names": unused,
            "renamed": sum(row["stored"] != row["name"] for row in values["parameters"] if not row["same_as"]), **train_both(model, folder)}
    if max(line["loss"], line["gradient"]) > 1e-5 or missing:
        line["result"] = "different"
    reference(family, trained, folder)
    if checker:
        line |= checked(checker, folder)
        line["result"] = line["result"] if line["cpp"] == "equal" else "different"
    return line


def try_family(family, folder, checker=None):
    import transformers

    from tessera.export import ExportError, export_pretrained

    transformers.logging.set_verbosity_error()
    begin = time.monotonic()
    line = {"family": family, "kind": FAMILIES[family][0]}
    try:
        transformers.utils.logging.disable_progress_bar()
        model = made_model(family)
        with tempfile.TemporaryDirectory() as source:
            model.save_pretrained(source)
            values = export_pretrained(source, folder / family, dtypes=("fp32",), attention="eager" if family in EAGER else None,
                                       weights="copy", force=True)
        line |= equal_line(family, model, values, folder / family, checker)
    except ExportError as error:
        line |= {"result": "failed", "reason": str(error)}
    except Exception as error:
        line |= {"result": "failed", "reason": f"{type(error).__name__}: {str(error)[:300]}"}
    return {**line, "seconds": round(time.monotonic() - begin, 1)}


def expected(line):
    if line["family"] in REFUSED:
        return line["result"] == "failed" and REFUSED[line["family"]] in line["reason"]
    return line["result"] == "equal"


def row_of(line):
    """A family's cells: what is its own, the result, differences in Python and in C++, operators, regions replaced and left."""
    numbers = [f"{line[key]:.0e}" for key in ("loss", "gradient")] if "loss" in line else ["", ""]
    layouts = ", ".join(f"{name} {value:.0e}" for name, value in line.get("differences", {}).items())
    regions = ["<br>".join(line.get(kind, [])) for kind in ("replaced", "not replaced")]
    cells = [line["family"], line["kind"], line.get("reason", line["result"]), *numbers, str(line.get("nodes", "")), layouts, *regions]
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def write_table(path, lines):
    names = ["family", "what is its own", "result", "loss", "gradients", "operators", "in C++", "replaced", "left"]
    path.write_text("\n".join(["| " + " | ".join(names) + " |", "|---" * len(names) + "|", *map(row_of, lines)]) + "\n")


def try_apart(family, folder, checker):
    """try_family() in a process of its own."""
    command = [sys.executable, "-B", __file__, "--keep", folder, *(["--checker", checker] if checker else []), family]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if len(lines) == 2:
        return json.loads(lines[0])
    return {"family": family, "kind": FAMILIES[family][0], "result": "failed", "reason": f"exit code {done.returncode}: {done.stderr[-300:]}"}


def main():
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    parser.add_argument("--checker")
    parser.add_argument("--jobs", type=int, default=1)
    for flag in ("--keep", "--table"):
        parser.add_argument(flag, type=pathlib.Path)
    given = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        families = given.families or list(FAMILIES)
        with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
            trying = pool.map(lambda family: (try_apart if given.jobs > 1 else try_family)(family, folder, given.checker), families)
            for line in trying:
                lines.append(line)
                print(json.dumps(line), flush=True)
    if given.table:
        write_table(given.table, lines)
    counts = {result: sum(line["result"] == result for line in lines) for result in sorted({line["result"] for line in lines})}
    print(json.dumps({"families": len(lines), **counts, "unexpected": [line["family"] for line in lines if not expected(line)]}), flush=True)
    return 0 if all(map(expected, lines)) else 1


if __name__ == "__main__":
    sys.exit(main())
