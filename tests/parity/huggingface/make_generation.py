# SPDX-License-Identifier: MIT
"""Makes generation/ in this folder with transformers and torch: two tiny models beside those of make_fixtures.py (with heads of their
own, for tied ones mostly repeat the last token), what generate() writes behind left-padded prompts with all of them, what its logits processors leave of scores, and the perplexity of the guide's sliding window.

Usage: make_generation.py OUTPUT_DIRECTORY. Made with transformers 5.23, torch 2.11; the suite reads only the result.
"""
import json
import math
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

PAD = 3
MODELS = ("generation/bloom", "generation/gpt2", "llama", "causal", "mistral", "qwen2", "qwen3")
NEW_TOKENS = 7
LENGTHS = (5, 1, 8, 3, 3, 9, 2, 6, 4, 7, 1)


def make_models(root, generator):
    common = {"vocab_size": 61, "n_layer": 2, "n_head": 4, "tie_word_embeddings": False, "pad_token_id": PAD}
    models = {"bloom": BloomForCausalLM(BloomConfig(**common, hidden_size=24)),
              "gpt2": GPT2LMHeadModel(GPT2Config(**common, n_embd=24, n_positions=16, bos_token_id=1, eos_token_id=2))}
    for name, model in models.items():
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(0.3 * noise if parameter.dim() >= 2 else parameter + 0.03 * noise)
        model.save_pretrained(root / "generation" / name)
        (root / "generation" / name / "generation_config.json").unlink()


def generate(model, prompts, end_token):
    """All prompts in one batch, padded on the left; the rows' ids behind the prompt, up to and with the end token."""
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    written = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=PAD,
                             eos_token_id=end_token, bos_token_id=None)[:, width:]
    rows = []
    for row in written.tolist():
        rows.append(row[:row.index(end_token) + 1] if end_token in row else row[:NEW_TOKENS])
    return rows


def smallest_margin(model, prompt, written):
    """How far the chosen scores are ahead: a tie would make the ids a matter of rounding."""
    logits = model(input_ids=torch.tensor([prompt + written])).logits[0, len(prompt) - 1:-1]
    best = logits.topk(2, dim=-1).values
    return (best[:, 0] - best[:, 1]).min().item()


def perplexity(model, ids, window, stride):
    """As transformers' guide "Perplexity of fixed-length models" computes it, and with every token's loss counted alike."""
    total, counted, exact, predicted, previous = 0.0, 0, 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        targets = end - previous
        given = torch.tensor([ids[begin:end]])
        labels = given.clone()
        labels[:, :-targets] = -100
        loss = model(given, labels=labels).loss.item()
        valid, shifted = int((labels != -100).sum()), int((labels[:, 1:] != -100).sum())
        total += loss * (valid - 1)
        counted += valid - 1
        exact += loss * shifted
        predicted += shifted
        previous = end
        if end == len(ids):
            break
    return {"window": window, "stride": stride, "perplexity": math.exp(total / counted),
            "perplexity_per_token": math.exp(exact / predicted)}


def sampling_cases():
    generator = torch.Generator().manual_seed(4)
    scores = torch.randn((3, 12), generator=generator) * 2
    cases = []
    for temperature, top_k, top_p in ((1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 4, 1.0), (1.0, 0, 0.6), (1.5, 6, 0.8), (1.0, 0, 0.05)):
        left = TemperatureLogitsWarper(temperature)(None, scores)
        if top_k:
            left = TopKLogitsWarper(top_k)(None, left)
        left = TopPLogitsWarper(top_p)(None, left)
        cases.append({"temperature": temperature, "top_k": top_k, "top_p": top_p, "probability": left.double().softmax(-1).tolist()})
    return {"scores": scores.tolist(), "cases": cases}


def main():
    root = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    make_models(root, generator)
    result = {"sampling": sampling_cases(), "models": {}}
    prompts = [torch.randint(4, 61, (length,), generator=generator).tolist() for length in LENGTHS]
    text = torch.randint(4, 61, (45,), generator=generator).tolist()
    with torch.no_grad():
        for name in MODELS:
            model = AutoModelForCausalLM.from_pretrained(root / name, dtype=torch.float32).eval()
            free = generate(model, prompts, end_token=60)
            # Ends some rows early, others late or not at all.
            end_token = max(range(61), key=lambda token: len({row.index(token) for row in free if token in row}))
            rows = generate(model, prompts, end_token)
            margin = min(smallest_margin(model, prompt, row) for prompt, row in zip(prompts, rows))
            assert margin > 5e-4, (name, margin)
            assert name in ("causal", "qwen3") or (len(set(sum(rows, []))) > 12 and len({len(row) for row in rows}) > 2), rows
            windows = [perplexity(model, text, 16, 5), perplexity(model, text, 10, 10)]
            result["models"][name] = {"end_token": end_token, "ids": rows, "perplexity": windows}
            print(name, "end token", end_token, "lengths", [len(row) for row in rows], "smallest margin", margin)
    result |= {"prompts": prompts, "max_new_tokens": NEW_TOKENS, "text": text}
    (root / "generation" / "expected.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
