# SPDX-License-Identifier: MIT
"""The programs of one directory: traced, checked, equal ones kept once, and written."""
import torch
from safetensors.torch import save_file

from . import constants as constants_of
from .check import Check
from .manifest import DTYPE_NAMES
from .manifest_text import manifest_text
from .program_graph import text_of, to_json
from .ranges import allowed_ranges
from .tracing import trace

MODES = ("train", "eval")
CHECKED_NUMBERS = 1 << 26  # parameters up to which a check draws weights; above it shapes are compared


class Programs:
    """The programs of one export: traces them, and keeps equal ones once."""

    def __init__(self, say):
        self.rows, self.texts, self.graphs, self.constants, self.changed = [], {}, {}, {}, set()
        self.ranges, self._say = None, say

    def add(self, module, dtype, mode, inputs, dims):
        """Traces the module in this mode; returns the sizes that this program allows. inputs and dims: as trace() takes them."""
        module.train(mode == "train")
        traced = trace(module, inputs, dims)
        ranges = allowed_ranges(traced, inputs, dims)
        graph = to_json(traced)
        self.changed |= constants_of.changed_buffers(graph)
        self.graphs[dtype, mode] = graph
        for name, value in constants_of.tensor_constants(traced, module).items():
            self.constants[f"{DTYPE_NAMES[dtype]}.{mode}/{name}"] = value.contiguous()
        for name, value in module.named_buffers(remove_duplicate=False):
            plain = self.constants.setdefault(name, value.detach().contiguous())
            if plain.dtype != value.dtype or not torch.equal(plain, value):
                self.constants[f"{DTYPE_NAMES[dtype]}.{mode}/{name}"] = value.detach().contiguous()
        text = text_of(graph)
        file = next((known for known, other in self.texts.items() if other == text), f"program.{DTYPE_NAMES[dtype]}.{mode}.json")
        self.texts[file] = text
        self.rows.append({"dtype": DTYPE_NAMES[dtype], "mode": mode, "file": file})
        self._say(f"{DTYPE_NAMES[dtype]} {mode}: {len(graph['graph_module']['graph']['nodes'])} operators")
        return ranges

    def narrow(self, ranges):
        """All programs of a directory allow what each of them allows."""
        self.ranges = ranges if self.ranges is None else _narrower(self.ranges, ranges)

    def values(self, dtype, mode):
        """Buffers and constants as a program of this dtype and mode finds them."""
        prefix = f"{DTYPE_NAMES[dtype]}.{mode}/"
        own = {name.removeprefix(prefix): value for name, value in self.constants.items() if name.startswith(prefix)}
        return {**self.constants, **own}


def _narrower(first, second):
    result = {}
    for name, (low, high) in first.items():
        other_low, other_high = second[name]
        tops = [top for top in (high, other_high) if top is not None]
        result[name] = [max(low, other_low), min(tops) if tops else None]
    return result


def write(made, programs, values):
    for file, text in programs.texts.items():
        (made / file).write_text(text + "\n")
    save_file({name: value.clone() for name, value in programs.constants.items()}, made / "program.constants.safetensors")
    (made / "program.json").write_text(manifest_text(values))


def check_program(module, programs, dtype, mode, inputs, dims, task, limits, ranges, say):
    """Compares the program with the module; returns its ranges, narrowed and widened by what was found at their ends."""
    module.train(mode == "train")
    count = sum(value.numel() for value in module.parameters())
    check = Check(module, programs.graphs[dtype, mode], programs.values(dtype, mode), inputs, dims, task, DTYPE_NAMES[dtype], limits,
                  by_values=count <= CHECKED_NUMBERS)
    found, refused = check.run(ranges)
    for name, size, why in refused:
        say(f"{DTYPE_NAMES[dtype]} {mode}: a size of {size} for {name} is refused: {why}")
    say(f"{DTYPE_NAMES[dtype]} {mode}: checked, " + ("losses and gradients" if check.by_values else "shapes only"))
    return found
