# SPDX-License-Identifier: MIT
"""A small interpreter of a program's JSON: runs its operators one after another under autograd, with weights from outside.

It is what the export is checked with, and says in Python what a reader has to do.
"""
import math
import operator

import torch

# ScalarType of torch/csrc/utils/generated_serialization_types.h
DTYPES = {1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
          8: torch.float64, 9: torch.complex32, 10: torch.complex64, 11: torch.complex128, 12: torch.bool, 13: torch.bfloat16}
LAYOUTS = {7: torch.strided}
MEMORY_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format}
PLAIN = ("as_int", "as_bool", "as_string", "as_ints", "as_bools", "as_strings")
SYMBOLIC = ("as_sym_int", "as_sym_float", "as_sym_bool")


def _only(union):
    """A union of the schema: its one key, and the value."""
    (key, value), = union.items()
    return key, value


class Interpreter:
    """A program, as program_graph.to_json() gives it."""

    def __init__(self, graph, device="cpu"):
        self._graph = graph["graph_module"]["graph"]
        self._inputs = [_only(spec) for spec in graph["graph_module"]["signature"]["input_specs"]]
        self._device = torch.device(device)

    def __call__(self, values, inputs):
        """The program's outputs, a list of tensors.

        values: parameters, buffers and constants by name. inputs: the user's tensors by name.
        """
        arguments = []
        for kind, spec in self._inputs:
            if kind == "user_input":
                _, argument = _only(spec["arg"])
                arguments.append(inputs[argument["name"]] if isinstance(argument, dict) else argument)
            elif kind in ("parameter", "buffer", "tensor_constant"):
                arguments.append(values[spec[f"{kind}_name"]])
            else:
                raise ValueError(f"the program has an input of the kind {kind}")
        return self._run(self._graph, arguments)

    def _run(self, graph, arguments):
        known = {}
        for place, value in zip(graph["inputs"], arguments, strict=True):
            _, name = _only(place)
            if isinstance(name, dict) and (name.get("name") or name.get("as_name")):
                known[name.get("name") or name["as_name"]] = value
        for node in graph["nodes"]:
            try:
                self._node(node, known)
            except Exception as error:
                raise RuntimeError(f"{node['name'] or node['target']}: {error}") from error
        return [self._value(output, known) for output in graph["outputs"]]

    def _node(self, node, known):
        inputs = [(argument["name"], argument.get("kind"), argument["arg"]) for argument in node["inputs"]]
        target = node["target"]
        if target.startswith("torch.ops.higher_order."):
            result = self._region(target, inputs, known)
        else:
            positional = [self._value(value, known) for _, kind, value in inputs if kind != 2]
            named = {name: self._value(value, known) for name, kind, value in inputs if kind == 2}
            result = self._function(target)(*positional, **named)
        self._store(node["outputs"], result, known)

    def _region(self, target, inputs, known):
        """A region of a higher-order operator: its own settings, a graph, and what the graph takes."""
        place = next(k for k, (_, _, value) in enumerate(inputs) if "as_graph" in value)
        settings = [self._value(value, known) for _, _, value in inputs[:place]]
        arguments = [self._value(value, known) for _, _, value in inputs[place + 1:]]
        graph = inputs[place][2]["as_graph"]["graph"]
        kind = target.rsplit(".", 1)[-1]
        if kind == "wrap_with_set_grad_enabled":
            with torch.set_grad_enabled(settings[0]):
                return self._run(graph, arguments)
        if kind == "wrap_with_autocast":
            device, dtype, enabled, cache = settings
            with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache):
                return self._run(graph, arguments)
        raise ValueError(f"the region {target} is not known")

    @staticmethod
    def _function(target):
        if target.startswith("torch.ops."):
            function = torch.ops
            for part in target.split(".")[2:]:
                function = getattr(function, part)
            return function
        module, name = target.rsplit(".", 1)
        if module == "_operator":
            return getattr(operator, name)
        if module == "math":
            return getattr(math, name)
        if name.startswith("sym_") and hasattr(torch, name):
            return getattr(torch, name)
        raise ValueError(f"the operator {target} is not known")

    def _value(self, union, known):
        kind, value = _only(union)
        if kind == "as_float":
            return float(value)  # "Infinity", "-Infinity" and "NaN" are texts, as JSON has no word for them
        if kind == "as_floats":
            return [float(item) for item in value]
        if kind in PLAIN:
            return value
        if kind == "as_tensor":
            return known[value["name"]]
        if kind == "as_tensors":
            return [known[item["name"]] for item in value]
        if kind == "as_optional_tensors":
            return [known[item["as_tensor"]["name"]] if "as_tensor" in item else None for item in value]
        if kind in SYMBOLIC:
            return self._symbol(value, known)
        if kind in ("as_sym_ints", "as_sym_floats", "as_sym_bools"):
            return [self._symbol(item, known) for item in value]
        if kind == "as_scalar_type":
            return DTYPES[value]
        if kind == "as_device":
            return self._device
        if kind == "as_layout":
            return LAYOUTS[value]
        if kind == "as_memory_format":
            return MEMORY_FORMATS[value]
        if kind == "as_none":
            return None
        raise ValueError(f"an argument of the kind {kind} is not known")

    @staticmethod
    def _symbol(value, known):
        kind, item = _only(value)
        return known[item] if kind == "as_name" else item

    def _store(self, outputs, result, known):
        if len(outputs) == 1 and isinstance(result, (list, tuple)) and "as_tensors" not in outputs[0]:
            result = result[0]
        if len(outputs) == 1:
            result = [result]
        for output, value in zip(outputs, result or []):
            kind, place = _only(output)
            if kind == "as_tensors":
                known.update({item["name"]: part for item, part in zip(place, value)})
            elif kind == "as_tensor":
                known[place["name"]] = value
            elif kind in SYMBOLIC and "as_name" in place:
                known[place["as_name"]] = value
