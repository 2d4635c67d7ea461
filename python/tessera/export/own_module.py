# SPDX-License-Identifier: MIT
"""The export of any module of torch that returns a loss."""
import contextlib

import torch
from safetensors.torch import save_file

from . import directory, models
from .errors import ExportError
from .initial_values import reset_rules
from .layers import repeated_layers
from .manifest import manifest
from .programs import MODES, Programs, check_program, write


@contextlib.contextmanager
def _in_dtype(module, dtype):
    """Within it the module has parameters and buffers of this dtype; behind it its own again, with their values, and its mode."""
    converted, kept, modes = {}, [], {part: part.training for part in module.modules()}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, value in table.items():
                if value is not None:
                    kept.append((table, name, value))
                    if id(value) not in converted:
                        converted[id(value)] = _converted(value, dtype)
    for table, name, value in kept:
        table[name] = converted[id(value)]
    try:
        yield
    finally:
        for table, name, value in kept:
            table[name] = value
        for part, mode in modes.items():
            part.training = mode


def _converted(value, dtype):
    kind = dtype if value.is_floating_point() else value.dtype
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(value.detach().to("cpu", kind), requires_grad=value.requires_grad)  # shares memory where nothing changes
    return value.detach().to("cpu", kind, copy=True)


def export_module(module, example, dynamic, out, dtypes=("fp32",), name=None, weights=True, check=True, force=False, modes=MODES,
                  say=lambda text: None, task="module"):
    """Exports any module of torch whose forward returns a loss, or the loss's sum and the count to divide it by.

    module: a torch.nn.Module. example: tensors by the names of the forward's arguments; sizes that shall be free are 2 at least.
    dynamic: names of free dimensions, as {"x": {0: "batch"}}; a dimension without a name is fixed.
    task: "causal" for a forward that returns the logits of next tokens, [batch, sequence, vocabulary], of input_ids.
    out: the directory to write. weights: whether model.safetensors with the module's values is written.
    The module keeps its values, dtype and mode. Returns the manifest. Raises ExportError.
    """
    if task not in ("module", "causal"):
        raise ExportError(f"the task is {task!r}; it must be 'module' or 'causal'")
    if task == "causal" and next(iter(example)) != "input_ids":
        raise ExportError("a causal module's first input must be input_ids")
    dims = _dimensions(example, dynamic)
    programs, rules = Programs(say), reset_rules(module)
    with directory.new_directory(out, force) as made:
        for dtype in dtypes:
            given = {key: _converted(value, models.DTYPES[dtype]) for key, value in example.items()}
            with _in_dtype(module, models.DTYPES[dtype]):
                for mode in modes:
                    ranges = programs.add(module, dtype, mode, given, dims)
                    if check:
                        ranges = check_program(module, programs, dtype, mode, given, dims, task, _limits(example, task), ranges, say)
                    programs.narrow(ranges)
        first = programs.graphs[dtypes[0], modes[0]]
        outputs, loss = _outputs(len(first["graph_module"]["graph"]["outputs"]), task)
        tensors, stored = _stored(module) if weights else ({}, {})
        values = manifest(name=name or type(module).__name__, task=task, model_type=type(module).__name__, module=module,
                          inputs=example, dims=dims, ranges=programs.ranges, outputs=outputs, loss=loss,
                          programs=programs.rows, layers=repeated_layers(module, first), stored=stored, rules=rules,
                          changed=programs.changed, constants=programs.constants, transformers_version=None)
        write(made, programs, values)
        if weights:
            save_file(tensors, made / "model.safetensors")
    return values


def _outputs(count, task):
    """The manifest's outputs, and the kind of its loss, of a program that returns so many tensors."""
    if task == "causal":
        if count != 1:
            raise ExportError(f"the module returns {count} tensors; return the logits alone")
        return [{"name": "logits"}], "causal"
    if count not in (1, 2):
        raise ExportError(f"the module returns {count} tensors; return a loss, or the loss's sum and a count")
    return ([{"name": "loss"}], "mean") if count == 1 else ([{"name": "loss_sum"}, {"name": "count"}], "sum_count")


def _limits(example, task):
    """Bounds of the inputs that a check draws: ids as large as the example's."""
    return {"vocabulary": int(example["input_ids"].max()) + 1} if task == "causal" else {}


def _dimensions(example, dynamic):
    """Sizes of each input: a name for a free one, a number for a fixed one."""
    unknown = set(dynamic) - set(example)
    if unknown:
        raise ExportError(f"dynamic names {sorted(unknown)[0]}, which is none of the example's inputs")
    dims = {key: [dynamic.get(key, {}).get(place, size) for place, size in enumerate(value.shape)] for key, value in example.items()}
    for key, value in example.items():
        for place, size in enumerate(dims[key]):
            if isinstance(size, str) and value.shape[place] < 2:
                raise ExportError(f"the example's {key} has a size of {value.shape[place]} where {size} shall be free; give 2 at least")
    return dims


def _stored(module):
    """The tensors of the module's file, a tied one once, and the name in it of everything that the module saves."""
    kept, stored = {}, {}
    state = {key: value for key, value in module.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}
    for key, value in state.items():
        stored[key] = kept.setdefault(id(value), key)
    return {key: state[key].detach().cpu().contiguous().clone() for key in kept.values()}, stored
