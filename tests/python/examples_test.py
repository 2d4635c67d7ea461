# SPDX-License-Identifier: MIT
"""The programs of examples/python on two ranks, beside plain PyTorch loops. Needs torch and transformers, and the module for this interpreter.

Usage: examples_test.py SOURCE_ROOT
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = pathlib.Path(sys.argv[1]).absolute()
LINES, STEPS, RANKS, TOLERANCE = 40, 4, 2, 1e-5
WORDS = "[UNK] <user> <assistant> <end> what is the colour of sky grass snow blue green white a red it not , .".split()
CHAT = ("{% for m in messages %}<{{ m.role }}> {% generation %}{% if m.role == 'assistant' %}{{ m.content }} <end> {% endif %}{% endgeneration %}"
        "{% if m.role == 'user' %}{{ m.content }} <end> {% endif %}{% endfor %}")
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_examples_"))


def run(name, *arguments):
    """What the program prints for its steps, of rank 0: lists of numbers."""
    program = ROOT / "examples/python" / name
    written = [line for line in program.read_text().splitlines() if line.strip()]
    assert len(written) <= LINES, f"{name} has {len(written)} lines"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), program, *arguments]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stdout[-4000:]
    seen = re.findall(r"step \d+ loss (\S+)(?: norm (\S+))?", done.stdout)
    assert len(seen) == STEPS, done.stdout[-4000:]
    return [[float(number) for number in numbers if number] for numbers in seen]


def compare(name, seen, wanted):
    for step, (mine, theirs) in enumerate(zip(seen, wanted)):
        assert len(mine) <= len(theirs)
        for a, b in zip(mine, theirs):
            assert abs(a - b) <= TOLERANCE * max(1, abs(b)), (name, step, mine, theirs)
    print(f"{name}: {len(wanted)} steps on {RANKS} ranks are those of a plain loop within {TOLERANCE:g}")


def make_model():
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", eos_token="<end>")
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(WORDS), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=64, eos_token_id=WORDS.index("<end>"), initializer_range=0.2)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    return tokenizer


def summed_loss(model, ids, labels):
    """Sum over a row's targets and their number."""
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    targets = torch.tensor(labels[1:])
    return functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum"), int((targets != -100).sum())


def lora_chats(tokenizer):
    colours = {"sky": "blue", "grass": "green", "snow": "white"}
    chats = [[{"role": "user", "content": f"what is the colour of {'the ' * (i % 3)}{thing}"}, {"role": "assistant", "content": f"{'it is ' * (i % 2)}{colour}"}]
             for i in range(4) for thing, colour in colours.items()]
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    seen = run("lora_chats.py", folder / "model", folder / "chats.jsonl", STEPS, folder / "adapter")

    # The same adapters' first values: a strategy of one rank draws them from the same seed.
    script = ("import sys, tessera, numpy\nwith tessera.Job() as job:\n"
              "    s = tessera.Strategy(job, tessera.Model.from_pretrained(sys.argv[1]), lora_r=8, lora_alpha=16, seed=1)\n"
              "    numpy.savez(sys.argv[2], **{n: numpy.asarray(a) for n, a in s.parameters().items() if 'lora_' in n})\n")
    subprocess.run([sys.executable, "-c", script, folder / "model", folder / "first.npz"], check=True)
    import numpy
    first = {name: torch.from_numpy(value) for name, value in numpy.load(folder / "first.npz").items()}
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    model.requires_grad_(False)
    pairs = {}
    for name in [name for name in first if name.endswith("lora_A.weight")]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        linear, a, b = model.get_submodule(module), first[name].requires_grad_(), first[name.replace("lora_A", "lora_B")].requires_grad_()
        pairs[module] = (a, b)
        linear.register_forward_hook(lambda _, inputs, output, a=a, b=b: output + 16 / 8 * inputs[0] @ a.T @ b.T)
    assert len(pairs) == 4, pairs.keys()
    trained = [value for pair in pairs.values() for value in pair]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0)
    rows = []
    for chat in chats:
        done = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        rows.append((done["input_ids"], [token if own else -100 for token, own in zip(done["input_ids"], done["assistant_masks"])]))
    wanted = []
    for step in range(STEPS):
        sums = [summed_loss(model, *rows[place % len(rows)]) for place in range(step * RANKS * 4, (step + 1) * RANKS * 4)]
        loss = sum(value for value, _ in sums) / sum(count for _, count in sums)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (STEPS - step) / STEPS
        optimizer.step()
        wanted.append((loss.item(), norm.item()))
    compare("lora_chats.py", seen, wanted)
    exported = load_file(folder / "adapter/adapter_model.safetensors")
    assert len(exported) == 8 and json.loads((folder / "adapter/adapter_config.json").read_text())["r"] == 8
    for module, (a, b) in pairs.items():
        for matrix, value in (("lora_A", a), ("lora_B", b)):
            difference = (exported[f"base_model.model.{module}.{matrix}.weight"] - value.detach()).abs().max()
            assert difference < 1e-4, (module, matrix, difference)


def own_module():
    seen = run("own_module.py", STEPS, folder / "state")
    source = (ROOT / "examples/python/own_module.py").read_text().split("\nsteps, output")[0]
    names = {}
    exec(source, names)
    torch.manual_seed(0)
    module, series, wanted = names["Forecaster"](), torch.randn(256, 17).cumsum(1), []
    for step in range(STEPS):
        rows = series[step * RANKS * 8:][:RANKS * 8]
        loss, count = module(rows[:, :16], rows[:, 16])
        module.zero_grad()
        (loss / count).backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.05 * parameter.grad
        wanted.append(((loss / count).item(), norm.item()))
    compare("own_module.py", seen, wanted)
    for rank in range(RANKS):
        state = torch.load(folder / f"state.{rank}")
        for name, value in module.state_dict().items():
            assert torch.allclose(state[name], value, rtol=TOLERANCE, atol=TOLERANCE), name


def dpo(tokenizer):
    pairs = [{"prompt": f"what is the colour of {'the ' * (i % 2)}{thing}", "chosen": f"it is {right} <end>", "rejected": f"{wrong} <end>"}
             for i in range(4) for thing, right, wrong in (("sky", "blue", "red"), ("snow", "white", "green , not a sky"))]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    seen = run("dpo.py", folder / "model", folder / "pairs.jsonl", STEPS, folder / "policy")
    policy, reference = (AutoModelForCausalLM.from_pretrained(folder / "model") for _ in range(2))

    def answer(model, pair, kind):
        before, after = tokenizer(pair["prompt"])["input_ids"], tokenizer(pair[kind])["input_ids"]
        return -summed_loss(model, before + after, [-100] * len(before) + after)[0]

    wanted = []
    for step in range(STEPS):
        first = step % (len(pairs) // 4) * 4
        losses = []
        for pair in pairs[first:first + 4]:
            with torch.no_grad():
                before = answer(reference, pair, "chosen") - answer(reference, pair, "rejected")
            after = answer(policy, pair, "chosen") - answer(policy, pair, "rejected")
            losses.append(-functional.logsigmoid(0.1 * (after - before)))
        loss = torch.stack(losses).mean()
        policy.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter -= 0.1 * parameter.grad
        wanted.append((loss.item(),))
    assert wanted[-1][0] < wanted[0][0] - 1e-3, wanted
    compare("dpo.py", seen, wanted)
    exported = AutoModelForCausalLM.from_pretrained(folder / "policy").state_dict()
    assert all(torch.allclose(exported[name], value, rtol=TOLERANCE, atol=TOLERANCE) for name, value in policy.state_dict().items())


made = make_model()
lora_chats(made)
own_module()
dpo(made)
