# SPDX-License-Identifier: MIT
"""The check of an export: the program's losses and gradients against the module's own, both with one set of drawn weights."""
import copy

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .errors import ExportError, first_sentence
from .interpreter import Interpreter

# Largest relative difference of a gradient's norm: the operators are the same, but their order of summation may not be.
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
    """An input like the example, of other sizes."""
    shape = [sizes.get(size, size) if isinstance(size, str) else size for size in dims[name]]
    if name == "input_ids":
        ids = torch.randint(0, limits["vocabulary"], shape, generator=generator)
        pad = limits.get("pad")
        return ids if pad is None else torch.where(ids == pad, (pad + 1) % limits["vocabulary"], ids)
    if name == "attention_mask":
        return torch.ones(shape, dtype=value.dtype)
    if name == "position_ids":
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


def compare(module, graph, values, inputs, dims, task, dtype, ranges, limits):
    """Compares losses, gradients and buffers at three shapes or more, in the module's present mode.

    values: buffers and constants by name. dtype: "float32" and so on. limits: of the inputs, as "vocabulary".
    Returns [(dimension, 1, why)] where a size of one is not what the module does. Raises ExportError where another size differs.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = _drawn_parameters(module, getattr(torch, dtype), generator)
    names = {name: drawn[id(value)] for name, value in module.named_parameters(remove_duplicate=False)}
    unique = {name: drawn[id(value)] for name, value in module.named_parameters()}
    put_back, refused = _with_parameters(module, drawn), []
    try:
        for number, sizes in enumerate(shapes_of(dims, ranges, limits)):
            given = {name: _draw(name, value, dims, sizes, limits, generator) for name, value in inputs.items()}
            try:
                worst = _compare_once(module, graph, values, names, unique, given, task)
            except _Differs as difference:
                worst = difference
            if isinstance(worst, float) and worst <= TOLERANCE[dtype]:
                continue
            one = [name for name, size in sizes.items() if size == 1 and ranges[name][0] == 1]
            text = worst if isinstance(worst, _Differs) else f"a gradient differs by {worst:.1e}"
            if number == 0 or not one:
                raise ExportError(f"the program does other work than the module at {sizes} in {dtype}: {text}")
            refused.append((one[0], 1, str(text)))
    finally:
        put_back()
    return refused


class _Differs(Exception):
    """The program and the module are not alike, in words."""


def _compare_once(module, graph, values, names, unique, given, task):
    """The largest relative difference of the loss, a gradient or a buffer."""
    before = {name: value.detach().clone() for name, value in module.named_buffers()}
    torch.manual_seed(0)
    try:
        theirs = _listed(module(**given))
        loss = loss_of(theirs, task, given)
    except Exception as error:
        _restore(module, before)
        raise _Differs(f"the module itself refuses them: {first_sentence(error)}") from error
    expected = _gradients(loss, unique)
    after = {name: value.detach().clone() for name, value in module.named_buffers()}
    _restore(module, before)
    own = {name: value.clone() for name, value in values.items()}
    torch.manual_seed(0)
    try:
        mine = Interpreter(graph)({**own, **names}, given)
    except Exception as error:
        raise _Differs(first_sentence(error)) from error
    if [tuple(value.shape) for value in mine] != [tuple(value.shape) for value in theirs]:
        raise _Differs(f"its outputs have the shapes {[list(value.shape) for value in mine]}, not {[list(value.shape) for value in theirs]}")
    my_loss = loss_of(mine, task, given)
    found = _gradients(my_loss, unique)
    worst = _difference(my_loss.detach(), loss.detach())
    for name, value in expected.items():
        worst = max(worst, _difference(found.get(name), value))
    for name, value in after.items():
        worst = max(worst, _difference(own[name].float(), value.float()))
    return worst if worst == worst else float("inf")


def _restore(module, values):
    with torch.no_grad():
        for name, value in module.named_buffers():
            value.copy_(values[name])


def compare_shapes(module, graph, values, inputs, dims, task, dtype, ranges, limits):
    """As compare(), of shapes only and without memory: for models whose weights are too large to draw."""
    generator, refused = torch.Generator().manual_seed(0), []
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fakes = {id(value): torch.nn.Parameter(torch.empty(value.shape, dtype=value.dtype), requires_grad=value.requires_grad)
                 for value in module.parameters()}
    names = {name: fakes[id(value)] for name, value in module.named_parameters(remove_duplicate=False)}
    put_back = _with_parameters(module, fakes)
    try:
        for number, sizes in enumerate(shapes_of(dims, ranges, limits)):
            given = {name: _draw(name, value, dims, sizes, limits, generator) for name, value in inputs.items()}
            with mode:
                try:
                    theirs = _listed(module(**given))
                except Exception:
                    continue
                try:
                    mine = Interpreter(graph)({**copy.copy(values), **names}, given)
                    alike = [tuple(value.shape) for value in mine] == [tuple(value.shape) for value in theirs]
                except Exception as error:
                    alike = first_sentence(error)
            if alike is True:
                continue
            one = [name for name, size in sizes.items() if size == 1]
            if number == 0 or not one:
                raise ExportError(f"the program does other work than the module at {sizes} in {dtype}: {alike or 'its outputs have other shapes'}")
            refused.append((one[0], 1, str(alike or "its outputs have other shapes")))
    finally:
        put_back()
    return refused
