# SPDX-License-Identifier: MIT
"""Modules of one's own under strategies, beside plain PyTorch loops; any number of ranks. Needs torch."""
import sys
import tempfile

import tessera
import torch
from torch import nn
from torch.nn import functional

STEPS, ROWS, RATE = 3, 4, 0.1
LAYOUTS = ({"strategy": "ddp"}, {"strategy": "zero2"}, {"strategy": "zero3"}, {"strategy": "fsdp"}, {"strategy": "zero3", "offload": "optimizer"},
           {"pipeline_parallel": 2})


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, hidden):
        return hidden + functional.gelu(self.linear(self.norm(hidden)))


class Regression(nn.Module):
    """Returns the sum of its loss and the number of its terms; has a buffer and a tied parameter."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6, bias=False)
        self.outer = nn.Linear(6, 6, bias=False)
        self.outer.weight = self.inner.weight
        self.layers = nn.ModuleList(Layer(6) for _ in range(3))
        self.register_buffer("offset", torch.linspace(0, 1, 6))

    def forward(self, x, target, importance):
        hidden = self.inner(x) + self.offset
        for layer in self.layers:
            hidden = layer(hidden)
        error = (self.outer(hidden) - target).square().sum(1)
        return (error * importance).sum(), importance.sum()


class Speaker(nn.Module):
    """Logits of next tokens, without attention: a mean over all tokens up to each."""

    def __init__(self, vocabulary=40, width=8):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, input_ids):
        hidden = self.table(input_ids)
        hidden = hidden.cumsum(1) / torch.ones_like(hidden).cumsum(1)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def close(mine, theirs, what, tolerance=1e-5):
    assert abs(mine - theirs) <= tolerance * max(1, abs(theirs)), (what, mine, theirs)


def refused(text, call):
    try:
        call()
    except tessera.Error as error:
        assert text in str(error), f"{text!r} is not in {str(error)!r}"
        return
    raise AssertionError(f"not refused: {text}")


def plain_loop(module, loss_of):
    """Losses and norms of SGD steps clipped to 0.5; loss_of(step) is the loss of all ranks' rows."""
    seen = []
    for step in range(STEPS):
        module.zero_grad()
        loss = loss_of(step)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= RATE * parameter.grad
        seen.append((loss.item(), norm.item()))
    return seen


def same_weights(strategy, module, what):
    state, wanted = strategy.state_dict(), module.state_dict()
    assert state.keys() == wanted.keys(), (what, state.keys() ^ wanted.keys())
    for name, value in wanted.items():
        assert state[name].dtype == value.dtype and torch.allclose(state[name], value, rtol=1e-5, atol=1e-6), (what, name)


def train(strategy, step_of, wanted, what):
    for step in range(STEPS):
        loss = step_of(strategy, step).loss
        norm = strategy.clip(0.5).norm
        strategy.optimizer_step(RATE)
        close(loss, wanted[step][0], (what, "loss", step))
        close(norm, wanted[step][1], (what, "norm", step))


def log_probabilities(logits, labels):
    """As tessera gives them: in the labels' places, 0 where there is none."""
    values = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="none")
    return functional.pad(-values.view(labels.shape[0], -1), (1, 0))


def state_of_adapters(strategy):
    """A and B by the weights that they stand beside."""
    prefix = "base_model.model."
    state = {name.removeprefix(prefix): value.clone() for name, value in strategy.state_dict().items() if name.startswith(prefix)}
    return {name.removesuffix(".lora_A.weight") + ".weight": [state[name], state[name.replace("lora_A", "lora_B")]] for name in state if ".lora_A." in name}


with tessera.Job() as job:
    layouts = [layout for layout in LAYOUTS if job.world_size > 1 or "pipeline_parallel" not in layout]
    data_ranks = lambda layout: (1, 0) if "pipeline_parallel" in layout else (job.world_size, job.rank)
    generator = torch.Generator().manual_seed(1)

    # A module that returns its loss: sum and count.
    x, target = (torch.randn(STEPS, 2 * ROWS * job.world_size, 6, generator=generator) for _ in range(2))
    importance = torch.rand(x.shape[:2], generator=generator)
    batch = lambda step, rows: {"x": x[step, rows], "target": target[step, rows], "importance": importance[step, rows]}
    torch.manual_seed(0)
    module = Regression()
    initial = {name: value.clone() for name, value in module.state_dict().items()}
    model = tessera.Model.from_module(module, batch(0, slice(0, 3)))
    for layout in layouts:
        ranks, rank = data_ranks(layout)
        module.load_state_dict(initial)
        strategy = tessera.Strategy(job, model, optim="sgd", **layout)
        same_weights(strategy, module, layout)
        rows = slice(2 * ROWS * rank, 2 * ROWS * rank + 2 * ROWS)
        halves = lambda step: [batch(step, slice(rows.start, rows.start + ROWS)), batch(step, slice(rows.start + ROWS, rows.stop))]

        def of_all(step):
            loss, count = module(**batch(step, slice(0, 2 * ROWS * ranks)))
            return loss / count

        wanted = plain_loop(module, of_all)
        train(strategy, lambda s, step: s.forward_backward(halves(step)), wanted, layout)
        same_weights(strategy, module, layout)
        strategy.load_state_dict(initial)
        close(strategy.evaluate(halves(0)).loss, wanted[0][0], (layout, "after load_state_dict"))
        if layout["strategy" if "strategy" in layout else "pipeline_parallel"] == "zero3":
            refused("log_probabilities() is for causal models", lambda: strategy.log_probabilities(halves(0)))
            refused("has no importance", lambda: strategy.evaluate({"x": x[0], "target": target[0]}))
            refused('unknown key "y"', lambda: strategy.evaluate({**halves(0)[0], "y": x[0]}))
            refused("has no weight", lambda: strategy.load_state_dict({**initial, "other": x}))
            refused("is missing", lambda: strategy.load_state_dict({"offset": initial["offset"]}))
            folder = job.exchange(tempfile.mkdtemp())[0]
            strategy.export(folder + "/exported")
            again = tessera.Strategy(job, tessera.Model.from_program(folder + "/exported"))
            close(again.evaluate(halves(0)).loss, wanted[0][0], "from_program")
        strategy.close()

    # LoRA: a plain loop trains A and B of W + scale B A.
    for layout in layouts:
        ranks, rank = data_ranks(layout)
        rows = slice(2 * ROWS * rank, 2 * ROWS * rank + 2 * ROWS)
        strategy = tessera.Strategy(job, model, optim="sgd", lora_r=2, lora_alpha=6, lora_target_modules="linear", **layout)
        pairs = state_of_adapters(strategy)
        assert sorted(pairs) == [f"layers.{i}.linear.weight" for i in range(3)], pairs.keys()
        adapters = nn.ParameterList(value for pair in pairs.values() for value in pair)

        def merged(step):
            changed = {name: initial[name] + 3 * adapters[2 * i + 1] @ adapters[2 * i] for i, name in enumerate(pairs)}
            loss, count = torch.func.functional_call(module, {**initial, **changed}, kwargs=batch(step, slice(0, 2 * ROWS * ranks)), tie_weights=False)
            return loss / count

        module.load_state_dict(initial)
        wanted = plain_loop(adapters, merged)
        train(strategy, lambda s, step: s.forward_backward(batch(step, rows)), wanted, ("lora", layout))
        for i, (name, pair) in enumerate(state_of_adapters(strategy).items()):
            assert all(torch.allclose(mine, own, rtol=1e-5, atol=1e-6) for mine, own in zip(pair, adapters[2 * i:2 * i + 2])), (name, layout)
        strategy.close()
    refused("no adapter", lambda: tessera.Strategy(job, model, lora_r=2, lora_target_modules="norm"))

    # A module that gives logits: labels, weights, log-probabilities, a loss of one's own.
    ids = torch.randint(0, 40, (STEPS, 2 * ROWS * job.world_size, 9), generator=generator)
    weights = torch.rand(ids.shape, generator=generator) - 0.3
    ids_of = {"input_ids": {0: "batch", 1: "sequence"}}
    torch.manual_seed(0)
    module = Speaker()
    initial = {name: value.clone() for name, value in module.state_dict().items()}
    model = tessera.Model.from_module(module, {"input_ids": ids[0, :3, :5]}, dynamic=ids_of, task="causal")
    for layout in layouts:
        ranks, rank = data_ranks(layout)
        rows, everyone = slice(2 * ROWS * rank, 2 * ROWS * rank + 2 * ROWS), slice(0, 2 * ROWS * ranks)
        labels = ids.masked_fill(torch.rand(ids.shape, generator=torch.Generator().manual_seed(2)) < 0.3, -100)
        module.load_state_dict(initial)
        strategy = tessera.Strategy(job, model, optim="sgd", **layout)
        mine = lambda step, **more: {"input_ids": ids[step, rows], "labels": labels[step, rows], **more}
        values = torch.from_dlpack(strategy.log_probabilities(mine(0)))
        assert torch.allclose(values, log_probabilities(module(ids[0, rows]), labels[0, rows]), atol=1e-5), layout

        def weighted(step):
            values = log_probabilities(module(ids[step, everyone]), labels[step, everyone])
            return -(values * weights[step, everyone]).sum() / labels[step, everyone, 1:].ne(-100).sum()

        wanted = plain_loop(module, weighted)
        train(strategy, lambda s, step: s.forward_backward(mine(step, weights=weights[step, rows])), wanted, layout)
        same_weights(strategy, module, layout)

        # A preference of the first half of a rank's rows to the second, and a penalty on the square.
        def preference(values):
            better, worse = values.sum(1).chunk(2)
            return -functional.logsigmoid(better - worse).mean() + 0.01 * values.square().sum()

        module.load_state_dict(initial)
        strategy.load_state_dict(initial)
        parts = [slice(2 * ROWS * r, 2 * ROWS * r + 2 * ROWS) for r in range(ranks)]
        own = lambda step: sum(preference(log_probabilities(module(ids[step, part]), labels[step, part])) for part in parts) / ranks
        wanted = plain_loop(module, own)
        train(strategy, lambda s, step: s.forward_backward(mine(step), loss=preference), wanted, layout)
        same_weights(strategy, module, layout)

        # Two micro-batches of unlike numbers of targets give a list.
        module.load_state_dict(initial)
        strategy.load_state_dict(initial)
        of_two = lambda step: [{name: value[:3] for name, value in mine(step).items()}, {name: value[3:] for name, value in mine(step).items()}]
        train(strategy, lambda s, step: s.forward_backward(of_two(step), loss=lambda both: preference(torch.cat(both))), wanted, (layout, "two"))
        text = [1, 2, 3]
        module.load_state_dict(strategy.state_dict())
        for _ in range(4):
            text.append(int(module(torch.tensor([text, text]))[0, -1].argmax()))
        assert strategy.generate([text[:3]], max_new_tokens=4) == [text[3:]], layout
        with torch.no_grad():  # what torch is told for the program's own computations changes nothing
            strategy.forward_backward(mine(0), loss=preference)
        refused("has weights beside loss=", lambda: strategy.forward_backward(mine(0, weights=weights[0, rows]), loss=preference))
        refused("it must be a tensor of torch with one element", lambda: strategy.forward_backward(mine(0), loss=lambda values: values))
        refused("it trains nothing", lambda: strategy.forward_backward(mine(0), loss=lambda values: torch.ones(1)))
        refused("weights hold infinite numbers", lambda: strategy.evaluate(mine(0, weights=weights[0, rows] / 0)))
        refused("packed", lambda: strategy.evaluate(mine(0, document_ids=torch.zeros_like(ids[0, rows]))))
        strategy.close()
print("all as it should be")
