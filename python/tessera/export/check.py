# SPDX-License-Identifier: MIT
"""The check of an export: the program's losses and gradients against the module's own, both with one set of drawn weights."""
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from .errors import ExportError, first_sentence
from .interpreter import Interpreter

# Largest relative difference of a gradient's norm: the operators are the same, but their order of summation may not be.
LARGEST_TRIED = 4096  # sizes above it take too long
FEW = 4  # least sizes up to which smaller ones are tried
TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "bfloat16": 5e-2, "float16": 1e-2}


def shapes_of(dims, ranges, limits):
    """Sizes that are tried: some of each, then one for each free dimension in turn, such as one row and one token."""
    free = list(dict.fromkeys(size for sizes in dims.values() for size in sizes if isinstance(size, str)))

    def size(name, wanted):
        low, high = ranges[name]
        most = min(high or wanted, limits.get("positions", wanted) if name == "sequence" else wanted)
        return max(low, min(wanted, most))

    first = {name: size(name, 2 if place == 0 else 17 + 6 * place) for place, name in enumerate(free)}
    return [first] + [{**{other: size(other, 5 if place == 0 else 12) for place, other in enumerate(free)}, name: size(name, 1)} for name in free]


def _draw(name, value, dims, sizes, limits, generator):
    """An input like the example, of other sizes. limits: of a language model's inputs; {} of another module's."""
    shape = [sizes.get(size, size) if isinstance(size, str) else size for size in dims[name]]
    if limits and name == "input_ids":
        ids = torch.randint(0, limits["vocabulary"], shape, generator=generator)
        pad = limits.get("pad")
        return ids if pad is None else torch.where(ids == pad, (pad + 1) % limits["vocabulary"], ids)
    if limits and name == "attention_mask":
        return torch.ones(shape, dtype=value.dtype)
    if limits and name == "position_ids":
        return torch.arange(shape[1]).repeat(shape[0], 1)
    if value.is_floating_point():
        return torch.randn(shape, generator=generator).to(value.dtype)
    if value.dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    low, high = int(value.min()), int(value.max())
    return torch.randint(low, high + 1, shape, generator=generator).to(value.dtype)


def loss_of(outputs, task, inputs, generator_seed=0):
    """A scalar of the outputs: the loss of the task where there is one, else a weighted sum, so that every element has a gradient."""
    if task == "module":
        return outputs[0].float() / (outputs[1].float() if len(outputs) > 1 else 1)
    logits = outputs[0]
    wide = logits if logits.dtype == torch.float64 else logits.float()
    more = sum(output.to(wide.dtype) for output in outputs[1:])
    if task == "causal" and wide.shape[1] > 1:
        return torch.nn.functional.cross_entropy(wide[:, :-1].flatten(0, 1), inputs["input_ids"][:, 1:].flatten()) + more
    if task == "classification":
        return torch.nn.functional.cross_entropy(wide, torch.arange(wide.shape[0]) % wide.shape[1]) + more
    weights = torch.randn(wide.shape, generator=torch.Generator().manual_seed(generator_seed), dtype=wide.dtype)
    return (wide * weights).mean() + more


def _drawn_parameters(module, dtype, generator):
    """{id of the module's parameter: a parameter with values}, ties kept."""
    drawn = {}
    for name, value in module.named_parameters():
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        base = 0.0 if value.dim() > 1 or name.endswith("bias") else 1.0
        drawn[id(value)] = torch.nn.Parameter((base + (0.08 if value.dim() > 1 else 0.1) * noise).to(value.dtype), requires_grad=value.requires_grad)
    return drawn


def _with_parameters(module, drawn):
    """Puts drawn parameters into the module; returns a function that puts its own back."""
    kept = [(part, name, value) for part in module.modules() for name, value in part._parameters.items() if value is not None]
    for part, name, value in kept:
        part._parameters[name] = drawn[id(value)]
    return lambda: [part._parameters.__setitem__(name, value) for part, name, value in kept]


def _listed(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _difference(mine, theirs):
    """Relative norm of the difference of two tensors, None as zero."""
    if mine is None and theirs is None:
        return 0.0
    mine = torch.zeros_like(theirs) if mine is None else mine
    theirs = torch.zeros_like(mine) if theirs is None else theirs
    scale = float(theirs.double().norm())
    return float((mine.double() - theirs.double()).norm()) / scale if scale > 1e-12 else float(mine.double().norm())


def _gradients(loss, parameters):
    trained = {name: value for name, value in parameters.items() if value.requires_grad}
    if not loss.requires_grad or not trained:
        return {}
    found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return dict(zip(trained, found))


class _Differs(Exception):
    """The program and the module are not alike, in words."""


class Check:
    """Compares a program with its module at several sizes, in the module's present mode.

    values: buffers and constants by name. task, limits: as loss_of() and _draw() take them. dtype: "float32" and so on.
    by_values: losses, gradients and buffers with drawn weights; else shapes only, without memory, for models too large to draw.
    """

    def __init__(self, module, graph, values, inputs, dims, task, dtype, limits, by_values=True):
        self._module, self._run, self._values, self._inputs, self._dims = module, Interpreter(graph), values, inputs, dims
        self._task, self._dtype, self._limits, self.by_values = task, dtype, limits, by_values
        self._generator, self._mode = torch.Generator().manual_seed(0), None if by_values else FakeTensorMode(allow_non_fake_inputs=True)

    def run(self, ranges):
        """Returns the ranges that hold and [(dimension, size, why)] of what was refused at their ends.

        A guard may exclude a size at an end at which the program does the same work, such as one token: those are tried, too.
        Raises ExportError where sizes inside the ranges differ.
        """
        ranges, refused = {name: list(ends) for name, ends in ranges.items()}, []
        drawn = self._draw_parameters()
        self._names = {name: drawn[id(value)] for name, value in self._module.named_parameters(remove_duplicate=False)}
        self._unique = {name: drawn[id(value)] for name, value in self._module.named_parameters()}
        put_back = _with_parameters(self._module, drawn)
        try:
            for number, sizes in enumerate(shapes_of(self._dims, ranges, self._limits)):
                why = self._try(sizes)
                one = [name for name, size in sizes.items() if size == 1 and ranges[name][0] == 1]
                if why and (number == 0 or not one):
                    raise ExportError(f"the program does other work than the module at {sizes} in {self._dtype}: {why}")
                if why:
                    ranges[one[0]][0] = 2
                    refused.append((one[0], 1, why))
            middle = {name: max(low, 2) if high != 1 else 1 for name, (low, high) in ranges.items()}
            for name, (low, high) in list(ranges.items()):
                while 1 < low <= FEW and (name, low - 1) not in [row[:2] for row in refused] and not self._try({**middle, name: low - 1}):
                    low = ranges[name][0] = low - 1
                most = LARGEST_TRIED if self.by_values else self._limits.get("positions", 0)  # shapes do not show a missing position
                if high is not None and high < most and not self._try({**middle, name: high + 1}):
                    ranges[name][1] = high + 1
        finally:
            put_back()
        return ranges, refused

    def _draw_parameters(self):
        if self.by_values:
            return _drawn_parameters(self._module, getattr(torch, self._dtype), self._generator)
        with self._mode:
            return {id(value): torch.nn.Parameter(torch.empty(value.shape, dtype=value.dtype), requires_grad=value.requires_grad)
                    for value in self._module.parameters()}

    def _try(self, sizes):
        """Why the program is not the module at these sizes; "" where it is."""
        given = {name: _draw(name, value, self._dims, sizes, self._limits, self._generator) for name, value in self._inputs.items()}
        try:
            if not self.by_values:
                self._compare_shapes(given)
                return ""
            worst = self._compare(given)
            return "" if worst <= TOLERANCE[self._dtype] else f"a loss, a gradient or a buffer differs by {worst:.1e}"
        except _Differs as difference:
            return str(difference)

    def _compare(self, given):
        """The largest relative difference of the loss, a gradient or a buffer."""
        before = _Buffers(self._module)
        torch.manual_seed(0)
        try:
            theirs = _listed(self._module(**given))
            loss = loss_of(theirs, self._task, given)
            expected = _gradients(loss, self._unique)
            after = {name: value.detach().clone() for name, value in self._module.named_buffers()}
        except Exception as error:
            raise _Differs(f"the module itself refuses them: {first_sentence(error)}") from error
        finally:
            before.restore()
        own = {name: value.clone() for name, value in self._values.items()}
        torch.manual_seed(0)
        mine = self._outputs(own, given)
        _check_shapes(mine, theirs)
        my_loss = loss_of(mine, self._task, given)
        found = _gradients(my_loss, self._unique)
        worst = _difference(my_loss.detach(), loss.detach())
        for name, value in expected.items():
            worst = max(worst, _difference(found.get(name), value))
        for name, value in after.items():
            worst = max(worst, _difference(own[name].float(), value.float()) if own[name].shape == value.shape else 1.0)
        return worst if worst == worst else float("inf")

    def _compare_shapes(self, given):
        with self._mode:
            try:
                theirs = _listed(self._module(**given))
            except (DataDependentOutputException, DynamicOutputShapeException):  # a fake has no values to decide by
                return
            except Exception as error:
                raise _Differs(f"the module itself refuses them: {first_sentence(error)}") from error
            _check_shapes(self._outputs(dict(self._values), given), theirs)

    def _outputs(self, values, given):
        try:
            return self._run({**values, **self._names}, given)
        except Exception as error:
            raise _Differs(first_sentence(error)) from error


def _check_shapes(mine, theirs):
    shapes = [[list(value.shape) for value in values] for values in (mine, theirs)]
    if shapes[0] != shapes[1]:
        raise _Differs(f"its outputs have the shapes {shapes[0]}, not {shapes[1]}")


class _Buffers:
    """The module's buffers with their values; a forward may change them, or put others in their place."""

    def __init__(self, module):
        self._kept = [(part, name, value, value.detach().clone()) for part in module.modules() for name, value in part._buffers.items()
                      if value is not None]

    def restore(self):
        with torch.no_grad():
            for part, name, value, copy in self._kept:
                value.copy_(copy)
                part._buffers[name] = value
