# SPDX-License-Identifier: MIT
"""Tracing: torch.export on a module whose parameters take no memory, with dimensions that must stay free."""
import contextlib
import re

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .errors import ExportError, first_sentence


@contextlib.contextmanager
def _fake_parameters(module):
    """Parameters without memory that say they are on the CPU, as the buffers are: operators refuse meta beside CPU."""
    mode, fakes, kept = FakeTensorMode(allow_non_fake_inputs=True), {}, []
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                if id(value) not in fakes:
                    fake = FakeTensor(mode, value.detach().to("meta"), torch.device("cpu"))
                    fakes[id(value)] = torch.nn.Parameter(fake, requires_grad=value.requires_grad)
                kept.append((part, name, value))
    for part, name, value in kept:
        part._parameters[name] = fakes[id(value)]
    try:
        yield
    finally:
        for part, name, value in kept:
            part._parameters[name] = value


def free_dimensions(dims):
    """torch.export's specification of one input: {place: DYNAMIC} for each dimension that has a name.

    dims: the input's sizes, a name for a free one and a number for a fixed one.
    """
    return {place: torch.export.Dim.DYNAMIC for place, size in enumerate(dims) if isinstance(size, str)} or None


def trace(module, inputs, dims):
    """The module's ExportedProgram in its present mode (train or eval): training operators, not decomposed.

    inputs: example tensors by name of the forward's arguments; their free sizes are 2 at least and all different.
    dims: for each name the input's sizes, as free_dimensions() takes them.
    Raises ExportError with PyTorch's reason, or the name of a dimension that became a constant.
    """
    innermost = _Innermost(module)
    with _fake_parameters(module), innermost, torch.enable_grad():
        try:
            given = {name: value.clone() for name, value in inputs.items()}  # one tensor under two names would be one input
            program = torch.export.export(module, (), kwargs=given, strict=False,
                                          dynamic_shapes={name: free_dimensions(dims[name]) for name in inputs})
        except Exception as error:
            raise _refusal(error, innermost.path, inputs, dims) from error
    _check_free(program, inputs, dims)
    return program


def _refusal(error, path, inputs, dims):
    for name in inputs:
        for place, size in enumerate(dims[name]):
            if isinstance(size, str) and re.search(rf"L\['{name}'\]\S*size\(\)\[{place}\]|{name}\S*\[{place}\]", str(error)) and "pecializ" in str(error):
                return ExportError(f"the dimension {size} of {name} becomes a constant in this module: {first_sentence(error)}", path)
    leaked = re.search(r"model attribute: (?:(\S+)\.)?lifted_tensor", str(error))
    if leaked:
        path = leaked.group(1) or ""
        return ExportError(f"{path + ': ' if path else ''}PyTorch cannot export it: the forward makes or changes a tensor that the tracer does not see, as "
                           f"weight.data.clamp_() does ({first_sentence(error, 110)})", path)
    where = f"{path}: " if path else ""
    return ExportError(f"{where}PyTorch cannot export it: {type(error).__name__}: {first_sentence(error)}", path)


class _Innermost:
    """Path of the module whose forward raised an exception, the innermost one."""

    def __init__(self, module):
        self.path, self._module, self._handles = "", module, []

    def __enter__(self):
        self._stack = []
        for path, part in self._module.named_modules():
            self._handles.append(part.register_forward_pre_hook(lambda *_, path=path: self._enter(path)))
            self._handles.append(part.register_forward_hook(lambda *_: self._leave()))

    def _enter(self, path):
        self._stack.append(path)
        self.path = path

    def _leave(self):
        self._stack.pop()
        self.path = self._stack[-1] if self._stack else ""

    def __exit__(self, *_):
        for handle in self._handles:
            handle.remove()


def user_inputs(program):
    """The graph's nodes of the user's inputs, in their order."""
    kinds = {spec.arg.name: spec.kind.name for spec in program.graph_signature.input_specs}
    return [node for node in program.graph.nodes if node.op == "placeholder" and kinds[node.name] == "USER_INPUT"]


def _check_free(program, inputs, dims):
    """Each free dimension must be one symbol of its own in the graph: PyTorch may make it a constant without a word."""
    symbols = {}
    for node, name in zip(user_inputs(program), inputs):
        shape = node.meta["val"].shape
        for place, size in enumerate(dims[name]):
            found = shape[place]
            if not isinstance(size, str):
                if isinstance(found, torch.SymInt) or found != size:
                    raise ExportError(f"the dimension {place} of {name} is {found} in the program; {size} was asked for")
                continue
            if not isinstance(found, torch.SymInt) or not found.node.expr.is_symbol:
                raise ExportError(f"the dimension {size} of {name} became {found} in the program; the module allows no other size")
            symbols.setdefault(size, set()).add(found.node.expr)
    owners = {}
    for size, found in symbols.items():
        for symbol in found:
            if owners.setdefault(symbol, size) != size:
                raise ExportError(f"the dimensions {owners[symbol]} and {size} are one in the program; the module ties their sizes")
