# SPDX-License-Identifier: MIT
"""Exports modules that are no language models and trains each program beside the module itself.

Usage: PYTHONPATH=python export_modules.py [--checker exported_parity] [--keep DIRECTORY] [NAME...]. One JSON line a module with the largest relative
differences over five SGD steps: of losses, of gradients, of buffers after the steps. The checker is the program of that name, which trains each
exported directory in C++ beside PyTorch and under every layout. Exit code 1 where a difference is above 1e-5 or the checker finds one.
Needs torch 2.11; vit and t5 need transformers.
"""
import argparse
import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings

import torch
from torch import nn

from program_reference import STEPS, block_seed, train, write_reference

ROWS_OF_REFERENCE = 8


class Residual(nn.Module):
    """Two convolutions with BatchNorm around which the input goes."""

    def __init__(self, channels, into, stride):
        super().__init__()
        self.first = nn.Conv2d(channels, into, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(into)
        self.second = nn.Conv2d(into, into, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(into)
        self.around = nn.Conv2d(channels, into, 1, stride, bias=False) if stride > 1 or channels != into else nn.Identity()

    def forward(self, x):
        return torch.relu(self.norm2(self.second(torch.relu(self.norm1(self.first(x))))) + self.around(x))


class ResNet(nn.Module):
    """Images to classes; returns the mean cross-entropy."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.stages = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 16, 1))
        self.head = nn.Linear(16, 7)

    def forward(self, images, labels):
        return nn.functional.cross_entropy(self.head(self.stages(self.stem(images)).mean((2, 3))), labels)


class UNet(nn.Module):
    """Images to images with connections across the levels; returns the sum of squares and the count of pixels."""

    def __init__(self):
        super().__init__()
        widths = (4, 8, 16)
        self.down = nn.ModuleList(self._pair(a, b) for a, b in zip((2, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths[-2::-1], widths[:0:-1]))
        self.join = nn.ModuleList(self._pair(2 * a, a) for a in widths[-2::-1])
        self.out = nn.Conv2d(widths[0], 2, 1)

    @staticmethod
    def _pair(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(2, b), nn.SiLU())

    def forward(self, noisy, clean):
        x, kept = noisy, []
        for level in self.down[:-1]:
            kept.append(level(x))
            x = nn.functional.max_pool2d(kept[-1], 2)
        x = self.down[-1](x)
        for up, join in zip(self.up, self.join):
            x = join(torch.cat((up(x), kept.pop()), 1))
        square = (self.out(x) - clean).square()
        return square.sum(), torch.ones_like(square).sum()


class Dropped(nn.Module):
    """Dropout, a buffer that is a constant, one that is counted and one that is an average; returns a mean."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(10, 24), nn.Linear(24, 1)
        self.drop = nn.Dropout(0.3)
        self.register_buffer("weights", torch.linspace(0.1, 1, 10), persistent=False)
        self.register_buffer("average", torch.zeros(24))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x, target):
        hidden = torch.tanh(self.first(x * self.weights))
        if self.training:
            self.average.lerp_(hidden.detach().mean(0), 0.1)
            self.steps.add_(1)
        return nn.functional.mse_loss(self.second(self.drop(hidden - self.average)).squeeze(-1), target)


class Loss(nn.Module):
    """A model of transformers that returns its loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model


class ImageLoss(Loss):
    def forward(self, pixel_values, labels):
        return self.model(pixel_values=pixel_values, labels=labels).loss


class TextLoss(Loss):
    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels, use_cache=False).loss


def vit():
    import transformers

    config = transformers.ViTConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4,
                                    num_labels=6, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return ImageLoss(transformers.ViTForImageClassification(config))


def t5():
    import transformers

    config = transformers.T5Config(vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=2, num_heads=4, dropout_rate=0.1,
                                   decoder_start_token_id=0, feed_forward_proj="gated-gelu")
    return TextLoss(transformers.T5ForConditionalGeneration(config))


def images(rows, name, target):
    return lambda g, n: {name: torch.randn(n, *rows, generator=g), "labels": torch.randint(0, target, (n,), generator=g)}


def text(g, n):
    source, target = (int(torch.randint(low, low + 6, (1,), generator=g)) for low in (9, 4))
    return {"input_ids": torch.randint(3, 96, (n, source), generator=g), "labels": torch.randint(3, 96, (n, target), generator=g)}


ROWS = {0: "batch"}
# name: module, inputs of a batch of n rows, free dimensions
MODULES = {
    "vit": (vit, images((3, 16, 16), "pixel_values", 6), {"pixel_values": ROWS, "labels": ROWS}),
    "resnet": (ResNet, images((3, 12, 12), "images", 7), {"images": ROWS, "labels": ROWS}),
    "unet": (UNet, lambda g, n: {name: torch.randn(n, 2, 16, 16, generator=g) for name in ("noisy", "clean")}, {"noisy": ROWS, "clean": ROWS}),
    "t5": (t5, text, {"input_ids": {0: "batch", 1: "source"}, "labels": {0: "batch", 1: "target"}}),
    "dropped": (Dropped, lambda g, n: {"x": torch.randn(n, 10, generator=g), "target": torch.randn(n, generator=g)}, {"x": ROWS, "target": ROWS}),
}


def relative(mine, theirs):
    scale = theirs.double().norm().item()
    return (mine.double() - theirs.double()).norm().item() / scale if scale > 1e-12 else mine.double().norm().item()


def scalar(outputs):
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    return outputs[0] / outputs[1] if len(outputs) > 1 else outputs[0]


def train_both(module, folder, batch_of):
    from safetensors.torch import load_file

    from tessera.export.interpreter import Interpreter
    from tessera.export.names import form_value

    manifest = json.loads((folder / "program.json").read_text())
    run = Interpreter(json.loads((folder / manifest["programs"][0]["file"]).read_text()))
    weights, values = load_file(folder / "model.safetensors"), load_file(folder / "program.constants.safetensors")
    values |= {name.removeprefix("float32.train/"): value for name, value in values.items()}
    values |= {row["name"]: weights[row["stored"]] for row in manifest["buffers"] if row["stored"]}
    mine, all_mine = {}, {}
    for row in manifest["parameters"]:
        own = row["same_as"] or row["name"]
        mine.setdefault(own, form_value(row["stored"], weights).clone().requires_grad_())
        all_mine[row["name"]] = mine[own]
    theirs = dict(module.named_parameters())
    optimizers = [torch.optim.SGD(parameters.values(), lr=0.02) for parameters in (theirs, mine)]
    generator, worst = torch.Generator().manual_seed(7), {"loss": 0.0, "gradient": 0.0, "buffer": 0.0}
    for step in range(STEPS):
        batch = batch_of(generator, 3 + step % 3)
        losses = []
        for call, optimizer in zip((lambda: module(**batch), lambda: run({**values, **all_mine}, batch)), optimizers):
            optimizer.zero_grad()
            torch.manual_seed(step)
            losses.append(scalar(call()))
            losses[-1].backward()
        worst["loss"] = max(worst["loss"], relative(losses[1].detach(), losses[0].detach()))
        for name, value in theirs.items():
            zero = torch.zeros_like(value)
            grads = [zero if p.grad is None else p.grad for p in (mine[name], value)]
            worst["gradient"] = max(worst["gradient"], relative(*grads))
        for optimizer in optimizers:
            optimizer.step()
    for name, value in module.named_buffers():
        worst["buffer"] = max(worst["buffer"], relative(values[name].float(), value.float()))
    return worst


def reference(name, module, folder, batch_of, changes):
    """Writes reference.json: the module's own training, with the draws of a program that is one block."""
    generator, draws = torch.Generator().manual_seed(8), any(isinstance(part, nn.Dropout) and part.p > 0 for part in module.modules())
    batches = [batch_of(generator, ROWS_OF_REFERENCE) for _ in range(STEPS)]

    def loss_of(training, batch, step):
        torch.manual_seed(block_seed(step + 1, 0))
        return scalar(training(**batch))

    results = {"sgd": train(module, loss_of, batches, "sgd", lambda trained: {key: value for key, value in trained.named_buffers() if key in changes})}
    more = {"seeds": list(range(1, STEPS + 1))} if draws else {}
    write_reference(folder, f"{name}: losses of the module", batches, results, **more)


def try_module(name, folder, checker):
    from tessera.export import ExportError, export_module

    begin = time.monotonic()
    make, batch_of, dynamic = MODULES[name]
    try:
        torch.manual_seed(0)
        module = make().train()
        before = copy.deepcopy(module.state_dict())
        values = export_module(module, batch_of(torch.Generator().manual_seed(6), 4), dynamic, folder / name, force=True)
        untouched = module.training and all(torch.equal(before[key], value) for key, value in module.state_dict().items())
        trained = copy.deepcopy(module)
        worst = train_both(module, folder / name, batch_of)
        changes = [row["name"] for row in values["buffers"] if row["changes"]]
        line = {"module": name, "result": "equal" if max(worst.values()) <= 1e-5 and untouched else "different", **worst, "untouched": untouched,
                "programs": len({row["file"] for row in values["programs"]}), "layers": values["layers"], "ranges": values["ranges"],
                "changes": changes,
                "undrawn": [row["name"] for row in values["parameters"] if row["init"] is None]}
        reference(name, trained, folder / name, batch_of, changes)
        if checker:
            line["layouts"] = checked(checker, folder / name)
    except ExportError as error:
        line = {"module": name, "result": "failed", "reason": str(error)}
    return {**line, "seconds": round(time.monotonic() - begin, 1)}


def checked(checker, folder):
    """"equal", or what training in C++ finds to differ."""
    done = subprocess.run([checker, folder], capture_output=True, text=True, check=False)
    return "equal" if done.returncode == 0 else (done.stdout.strip().removeprefix(f"{folder}: ") or done.stderr.strip()[-300:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--checker")
    parser.add_argument("--keep", type=pathlib.Path)
    given = parser.parse_args()
    equal = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in given.names or MODULES:
            line = try_module(name, folder, given.checker)
            print(json.dumps(line), flush=True)
            equal = equal and line["result"] == line.get("layouts", "equal") == "equal"
    return 0 if equal else 1


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    sys.exit(main())
