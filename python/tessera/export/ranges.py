# SPDX-License-Identifier: MIT
"""Sizes that a free dimension may have: from the symbols' ranges, and from the guards that PyTorch noted while tracing."""
import math

import torch

from .errors import ExportError
from .tracing import user_inputs

TRIED = (*range(1, 130), 255, 256, 257, 511, 512, 513, 1000, 1024, 1025, 2047, 2048, 2049, 4096, 4097, 8192, 8193, 16384, 32768, 131072)


class _Sizes:
    """What a guard's text asks of an input: L['x'].size()[1]."""

    def __init__(self, sizes):
        self._sizes = sizes

    def size(self, place=None):
        return self._sizes if place is None else self._sizes[place]

    @property
    def shape(self):
        return self._sizes

    def dim(self):
        return len(self._sizes)


def _holds(guard, inputs, dims, sizes):
    shapes = {name: _Sizes([sizes.get(size, size) for size in dims[name]]) for name in inputs}
    names = {"L": shapes, "min": min, "max": max, "Min": min, "Max": max, "Mod": lambda a, b: a % b, "PythonMod": lambda a, b: a % b, "abs": abs,
             "FloorDiv": lambda a, b: a // b, "CleanDiv": lambda a, b: a // b, "math": math, "Eq": lambda a, b: a == b, "Ne": lambda a, b: a != b,
             "not": lambda a: not a, "torch": torch}
    try:
        return bool(eval(guard, {"__builtins__": {}}, names))  # the text is torch.export's own
    except Exception:
        return True  # a guard about something else than sizes


def allowed_ranges(program, inputs, dims):
    """{dimension: [least, most or None]} of every free dimension.

    program: an ExportedProgram. Raises ExportError where sizes inside the range are forbidden, such as those that 8 does not divide.
    """
    examples = {size: inputs[name].shape[place] for name in inputs for place, size in enumerate(dims[name]) if isinstance(size, str)}
    ranges = _bounds(program, inputs, dims)
    for size, example in examples.items():
        for guard in program._guards_code or []:
            ranges[size] = _narrowed(ranges[size], size, example, guard, lambda n, size=size, guard=guard: _holds(guard, inputs, dims, {**examples, size: n}))
    return ranges


def _narrowed(bounds, size, example, guard, holds):
    """The sizes around the example's at which a guard holds; raises where it also holds beyond a size at which it fails."""
    low, high = bounds
    tried = [n for n in TRIED if low <= n <= (high or n)]
    fails = [n for n in tried if not holds(n)]
    below, above = max((n for n in fails if n < example), default=0), min((n for n in fails if n > example), default=None)
    if any(n < below or (above is not None and n > above) for n in tried if n not in fails):
        raise ExportError(f"the dimension {size} is not free in this module: it holds only where {guard}")
    if above is not None:
        most = max([n for n in tried if n < above] or [example])
        while most + 1 < above and holds(most + 1):
            most += 1
        high = most
    return [max(low, below + 1), high]


def _bounds(program, inputs, dims):
    """Ranges of the symbols; PyTorch counts from 2, since 0 and 1 are never symbols while it traces."""
    bounds = {}
    for name, node in zip(inputs, user_inputs(program)):
        for place, size in enumerate(dims[name]):
            if isinstance(size, str):
                found = program.range_constraints.get(node.meta["val"].shape[place].node.expr)
                low = 1 if found is None or int(found.lower) <= 2 else int(found.lower)
                finite = found is not None and found.upper.is_Integer and int(found.upper) < (1 << 62)
                bounds[size] = [low, int(found.upper) if finite else None]
    return bounds
