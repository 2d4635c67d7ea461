# SPDX-License-Identifier: MIT
"""The map between a module's parameters and the tensors of its safetensors files, from transformers' conversion of names.

A parameter's "stored" says how its value comes from the file:
  null                                                             the file has no such tensor: drawn by "init"
  "NAME"                                                           the tensor of this name
  {"kind": "stack", "dim": d, "of": [S, ...]}                      torch.stack, such as experts that the file holds one by one
  {"kind": "concat", "dim": d, "of": [S, ...]}                     torch.cat, such as gate and up projections in one parameter
  {"kind": "transpose", "dims": [a, b], "of": S}                   torch.Tensor.transpose
  {"kind": "slice", "dim": d, "begin": b, "end": e, "of": S}       a part, such as the query's rows of a fused projection
  {"kind": "reshape", "shape": [...], "of": S}                     torch.Tensor.reshape
S is again a name or such a dictionary. All of them move elements and change none, so the same words say how to write the file.
"""
import copy

import torch

from .errors import ExportError, first_sentence


class _Stored(torch.Tensor):
    """A tensor without memory that remembers which tensors of the file it is made of."""

    @staticmethod
    def of(shape, form):
        tensor = torch.empty(shape, device="meta").as_subclass(_Stored)
        tensor.form = form
        return tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        plain = torch.utils._pytree.tree_map_only(_Stored, lambda t: t.as_subclass(torch.Tensor), (args, kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*plain[0], **plain[1])
        name = getattr(func, "__name__", str(func))
        if not isinstance(result, torch.Tensor) and not (isinstance(result, (tuple, list)) and result and isinstance(result[0], torch.Tensor)):
            return result
        return _Stored._with_form(name, args, kwargs, result)

    @staticmethod
    def _with_form(name, args, kwargs, result):
        def wrapped(tensor, form):
            tensor = tensor.as_subclass(_Stored)
            tensor.form = form
            return tensor

        def argument(place, key, default):
            return args[place] if len(args) > place else kwargs.get(key, default)

        if name in ("contiguous", "detach", "clone", "to"):
            return wrapped(result, args[0].form)
        if name in ("stack", "cat", "concat"):
            dim = argument(1, "dim", 0)
            return wrapped(result, {"kind": "stack" if name == "stack" else "concat", "dim": dim % result.dim(), "of": [part.form for part in args[0]]})
        source = args[0]
        if name == "transpose":
            first, second = argument(1, "dim0", 0) % source.dim(), argument(2, "dim1", 1) % source.dim()
            return wrapped(result, {"kind": "transpose", "dims": [first, second], "of": source.form})
        if name in ("t", "numpy_T"):
            return wrapped(result, {"kind": "transpose", "dims": [0, 1], "of": source.form})
        if name in ("chunk", "split", "tensor_split"):
            dim, begin, parts = argument(2, "dim", 0) % source.dim(), 0, []
            for part in result:
                end = begin + part.shape[dim]
                parts.append(wrapped(part, {"kind": "slice", "dim": dim, "begin": begin, "end": end, "of": source.form}))
                begin = end
            return tuple(parts)
        if name in ("reshape", "view", "squeeze", "unsqueeze", "flatten", "unflatten"):
            return wrapped(result, {"kind": "reshape", "shape": list(result.shape), "of": source.form})
        raise ExportError(f"transformers converts this model's tensors by {name}, which the program's map has no word for")


def _forward_map(model, shapes):
    """(parameter, form) from the file's tensors, by the rules that transformers loads with.

    shapes: the file's tensors, name to shape.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    by_pattern = {pattern: rule for rule in converters for pattern in rule.source_patterns}
    targets, waiting, forms = model.state_dict(), {}, {}
    for stored in sorted(shapes, key=dot_natural_key):
        name, pattern = rename_source_key(stored, renamings, converters, model.base_model_prefix, targets)
        if name not in targets and stored in targets:
            name, pattern = rename_source_key(stored, [], [], model.base_model_prefix, targets)
        if name not in targets:
            continue
        if pattern is None:
            forms[name] = stored
        else:
            rule = waiting.setdefault(name, copy.deepcopy(by_pattern[pattern]))
            rule.add_tensor(name, stored, pattern, _Stored.of(shapes[stored], stored))
    for name, rule in waiting.items():
        for target, value in _converted(rule, name, model).items():
            forms[target] = value.form
    return forms


def _converted(rule, name, model):
    """A converter's results on tensors that remember where they came from, by parameter."""
    realised = rule.convert(name, model=model, config=model.config)
    return {target: value[0] if isinstance(value, list) else value for target, value in realised.items()}


def saved_shapes(model):
    """Names and shapes of the tensors that transformers saves for the model, without a tied parameter's second name."""
    from transformers.core_model_loading import revert_weight_conversion

    first = {}
    for name, value in model.state_dict(keep_vars=True).items():
        first.setdefault(id(value), (name, value))
    state = {name: torch.empty(value.shape, device="meta", dtype=value.dtype) for name, value in first.values()}
    return {name: tuple(value.shape) for name, value in revert_weight_conversion(model, state).items()}


def stored_forms(model, shapes=None):
    """What a transformers model's parameters and buffers come from in the file: name to "stored".

    shapes: names and shapes of the directory's tensors; None where it has no weights, then those that transformers would save.
    """
    try:
        return _forward_map(model, saved_shapes(model) if shapes is None else shapes)
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"transformers' conversion of names fails for {type(model).__name__}: {first_sentence(error)}") from error


def form_shape(form, shapes):
    """The shape that a form gives; shapes: of the file's tensors by name."""
    if isinstance(form, str):
        return tuple(shapes[form])
    inner = [form_shape(part, shapes) for part in form["of"]] if isinstance(form["of"], list) else [form_shape(form["of"], shapes)]
    shape = list(inner[0])
    kind = form["kind"]
    if kind == "stack":
        return (*shape[:form["dim"]], len(inner), *shape[form["dim"]:])
    if kind == "concat":
        shape[form["dim"]] = sum(part[form["dim"]] for part in inner)
    elif kind == "transpose":
        first, second = form["dims"]
        shape[first], shape[second] = shape[second], shape[first]
    elif kind == "slice":
        shape[form["dim"]] = form["end"] - form["begin"]
    elif kind == "reshape":
        shape = form["shape"]
    return tuple(shape)


def form_value(form, tensors):
    """The value that a form gives; tensors: the file's by name."""
    if isinstance(form, str):
        return tensors[form]
    parts = [form_value(part, tensors) for part in form["of"]] if isinstance(form["of"], list) else [form_value(form["of"], tensors)]
    kind = form["kind"]
    if kind == "stack":
        return torch.stack(parts, form["dim"])
    if kind == "concat":
        return torch.cat(parts, form["dim"])
    if kind == "transpose":
        return parts[0].transpose(*form["dims"])
    if kind == "slice":
        return parts[0].narrow(form["dim"], form["begin"], form["end"] - form["begin"])
    if kind == "reshape":
        return parts[0].reshape(form["shape"])
    raise ExportError(f"the kind {kind} of a stored tensor is not known")


def names_in(form):
    """The file's tensors that a form reads."""
    if form is None:
        return set()
    if isinstance(form, str):
        return {form}
    return set().union(*(names_in(part) for part in (form["of"] if isinstance(form["of"], list) else [form["of"]])))
