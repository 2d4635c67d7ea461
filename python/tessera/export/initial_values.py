# SPDX-License-Identifier: MIT
"""How a model draws its parameters: rules found by watching the operators that fill them.

A rule is a dictionary, written into the manifest as a parameter's "init":
  {"kind": "normal", "mean": m, "std": s}                          torch.Tensor.normal_
  {"kind": "uniform", "low": a, "high": b}                         torch.Tensor.uniform_
  {"kind": "truncated_normal", "mean", "std", "low", "high"}       torch.nn.init.trunc_normal_
  {"kind": "constant", "value": v}                                 ones, zeros, fill_
  {"kind": "tensor", "constant": NAME}                             small tables, such as the logarithms of 1 to n; the values are in the constants' file
"zero_rows": [r, ...] is added where rows are zero after the draw, such as an embedding's padding row.
None: no rule was found.
"""
import contextlib
import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode

TABLE_LIMIT = 1 << 18  # elements of a parameter whose values may be kept as a table

aten = torch.ops.aten


def _constant(value):
    return {"kind": "constant", "value": float(value)}


def _of_values(values):
    """The rule that a tensor with values stands for: a constant or a table."""
    if values.numel() > TABLE_LIMIT or values.numel() == 0:
        return None
    values = values.detach()
    first = values.flatten()[0]
    if bool((values == first).all()):
        return _constant(first)
    return {"kind": "tensor", "values": values.clone()}


class InitialValues(TorchDispatchMode):
    """Watches factories and in-place fills; rule(tensor) says how a tensor was filled last."""

    def __init__(self):
        super().__init__()
        self._rules = {}  # by the storage's address

    @staticmethod
    def _key(tensor):
        return tensor.untyped_storage()._cdata

    def rule(self, tensor):
        """The rule of a tensor's storage; None where operators did what no rule says."""
        rule = self._rules.get(self._key(tensor))
        if rule and any(math.isinf(value) for value in rule.values() if isinstance(value, float)):
            return None  # a draw that was not finished
        if rule is None and tensor.device.type != "meta":
            rule = _of_values(tensor)
        return rule

    def move(self, old, new):
        """Gives `new` the rule of `old`, whose memory is about to go."""
        self._rules[self._key(new)] = self.rule(old)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        before = self._rules.get(self._key(args[0])) if args and isinstance(args[0], torch.Tensor) else None
        result = func(*args, **kwargs)
        if not isinstance(result, torch.Tensor):
            return result
        if func._schema.is_mutable:
            if result is args[0]:
                self._filled(func, args, kwargs, before)
        elif not any(argument.alias_info for argument in func._schema.arguments):
            self._rules[self._key(result)] = self._made(func, args, kwargs)
        return result

    @staticmethod
    def _made(func, args, kwargs):
        name = func.overloadpacket.__name__
        if name in ("zeros", "zeros_like", "new_zeros"):
            return _constant(0)
        if name in ("ones", "ones_like", "new_ones"):
            return _constant(1)
        if name in ("full", "full_like", "new_full"):
            value = args[2] if name == "new_full" else args[1]
            return _constant(value) if isinstance(value, (int, float)) else None
        if name == "randn":
            return {"kind": "normal", "mean": 0.0, "std": 1.0}
        if name == "rand":
            return {"kind": "uniform", "low": 0.0, "high": 1.0}
        return None

    def _filled(self, func, args, kwargs, before):
        tensor, key = args[0], self._key(args[0])
        name = func.overloadpacket.__name__
        whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        rule = self._rules.get(self._key(args[1])) if _copies_meta(name, args) else self._fill_rule(name, args, kwargs, before, tensor.shape)
        if whole:
            self._rules[key] = rule
        elif rule == _constant(0) and before and tensor.dim() == 1 and tensor.is_contiguous():
            row = tensor.storage_offset() // max(tensor.numel(), 1)
            rows = sorted({*before.get("zero_rows", []), row})
            self._rules[key] = {**before, "zero_rows": rows} if before != rule else before
        elif before != rule:
            self._rules[key] = None

    @staticmethod
    def _fill_rule(name, args, kwargs, before, shape):
        def argument(place, key, default):
            return args[place] if len(args) > place else kwargs.get(key, default)

        if name == "normal_":
            return {"kind": "normal", "mean": float(argument(1, "mean", 0)), "std": float(argument(2, "std", 1))}
        if name == "uniform_":
            return {"kind": "uniform", "low": float(argument(1, "from", 0)), "high": float(argument(2, "to", 1))}
        if name == "zero_":
            return _constant(0)
        if name == "fill_" and not isinstance(args[1], torch.Tensor):
            return _constant(args[1])
        if name == "copy_" and args[1].device.type != "meta":
            return _of_values(args[1])
        if before is None:
            return None
        if name == "log_" and before["kind"] == "uniform":
            return _logarithms(before, shape)
        return _changed(name, args, kwargs, dict(before))


def _copies_meta(name, args):
    """Whether the operator copies a whole tensor of the same shape that lies on meta."""
    return name == "copy_" and args[1].device.type == "meta" and args[0].shape == args[1].shape


def _logarithms(rule, shape):
    """A table for the logarithms of uniform numbers, as state spaces' decays; drawn once, at the export."""
    if shape.numel() > TABLE_LIMIT or rule["low"] <= 0:
        return None
    values = torch.Tensor.uniform_(torch.zeros(shape), rule["low"], rule["high"], generator=torch.Generator().manual_seed(0))
    return {"kind": "tensor", "values": values.log()}


def _changed(name, args, kwargs, rule):
    """The rule after an in-place operator on a tensor that had `rule`; trunc_normal_ is a sequence of these."""
    kind, number = rule["kind"], args[1] if len(args) > 1 and isinstance(args[1], (int, float)) else None
    if name == "erfinv_" and kind == "uniform":
        # uniform on (2 cdf(a) - 1, 2 cdf(b) - 1); the inverse error function makes it a cut normal of deviation 1/sqrt(2)
        return {"kind": "truncated_normal", "mean": 0.0, "std": 1 / math.sqrt(2), "low": -math.inf, "high": math.inf}
    if name == "clamp_" and kind == "truncated_normal":
        low, high = (args[k] if len(args) > k else kwargs.get(word) for k, word in ((1, "min"), (2, "max")))
        return {**rule, "low": float(low), "high": float(high)}
    if number is None:
        return None
    factor, more = {"mul_": (number, 0), "div_": (1 / number if number else 0, 0), "add_": (1, number)}.get(name, (None, None))
    if factor is None:
        return None
    for key in ("mean", "low", "high", "value"):
        if key in rule:
            rule[key] = rule[key] * factor + more
    if "std" in rule:
        rule["std"] *= abs(factor)
    return rule if kind in ("normal", "uniform", "constant", "truncated_normal") and "zero_rows" not in rule else None


@contextlib.contextmanager
def parameters_on_meta():
    """Within it, parameters of modules that are made lie on meta and take no memory; buffers are made for real.

    Yields the InitialValues that has every parameter's rule.
    """
    watch = InitialValues()
    register = torch.nn.Module.register_parameter

    def on_meta(module, name, parameter):
        if parameter is not None and parameter.device.type != "meta":
            moved = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            moved.__dict__.update(parameter.__dict__)
            watch.move(parameter, moved)
            parameter = moved
        register(module, name, parameter)

    torch.nn.Module.register_parameter = on_meta
    try:
        with watch:
            yield watch
    finally:
        torch.nn.Module.register_parameter = register


def reset_rules(module):
    """Rules by parameter name, as reset_parameters() of the module's parts draws them; the module keeps its values."""
    watch, rules = InitialValues(), {}
    for path, part in module.named_modules():
        own = {name: value for name, value in part._parameters.items() if value is not None}
        reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
        if not own or reset is None:
            continue
        buffers = dict(part._buffers)
        try:
            for name, value in own.items():
                part._parameters[name] = torch.nn.Parameter(torch.empty_like(value, device="meta"), requires_grad=value.requires_grad)
            part._buffers.update({name: value.clone() for name, value in buffers.items() if value is not None})
            with watch, torch.no_grad():
                reset()
            rules.update({f"{path}.{name}".lstrip("."): watch.rule(part._parameters[name]) for name in own})
        except Exception:  # a reset that needs values leaves its parameters without a rule
            pass
        finally:
            part._parameters.update(own)
            part._buffers.update(buffers)
    return rules
