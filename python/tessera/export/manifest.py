# SPDX-License-Identifier: MIT
"""program.json, the manifest: what the programs take and give, and what each parameter is."""
import torch

VERSION = 1
DTYPE_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


def dtype_name(tensor_or_dtype):
    """"float32" and so on."""
    return str(getattr(tensor_or_dtype, "dtype", tensor_or_dtype)).removeprefix("torch.")


def inputs_section(inputs, dims):
    """The user's inputs in the graph's order. dims: sizes by name, a name for a free one."""
    return [{"name": name, "dtype": dtype_name(value), "dims": list(dims[name])} for name, value in inputs.items()]


def parameters_section(module, stored, rules, tables):
    """Every parameter by every name that it has.

    stored: "stored" by name. rules: initial values by name. tables: filled with the values of rules that are tables.
    """
    first, section = {}, []
    for name, value in module.named_parameters(remove_duplicate=False):
        same_as = first.setdefault(id(value), name)
        rule = rules.get(same_as)
        if rule and rule["kind"] == "tensor":
            tables[f"init/{same_as}"] = rule["values"].contiguous()
            rule = {"kind": "tensor", "constant": f"init/{same_as}"}
        section.append({"name": name, "shape": list(value.shape), "stored": stored.get(name, stored.get(same_as)),
                        "same_as": None if same_as == name else same_as, "trained": value.requires_grad, "init": rule})
    return section


def buffers_section(module, stored, changed):
    """Every buffer. changed: names of those that a program writes to."""
    section = []
    for path, part in module.named_modules(remove_duplicate=False):
        for name, value in part._buffers.items():
            if value is None:
                continue
            full = f"{path}.{name}".lstrip(".")
            section.append({"name": full, "shape": list(value.shape), "dtype": dtype_name(value),
                            "persistent": name not in part._non_persistent_buffers_set, "stored": stored.get(full), "changes": full in changed})
    return section


def manifest(name, task, model_type, module, inputs, dims, ranges, outputs, loss, programs, layers, stored, rules, changed, constants, transformers_version):
    """The manifest as a dictionary; constants gets the tables of initial values.

    programs: {"dtype", "mode", "file"} in the order of export. ranges: sizes that each free dimension may have.
    """
    return {
        "format": "tessera.program", "version": VERSION, "torch": torch.__version__.split("+")[0], "transformers": transformers_version,
        "name": name, "task": task, "model_type": model_type,
        "inputs": inputs_section(inputs, dims), "ranges": ranges, "outputs": outputs, "loss": loss, "programs": programs,
        "constants": "program.constants.safetensors", "layers": layers,
        "parameters": parameters_section(module, stored, rules, constants), "buffers": buffers_section(module, stored, changed),
        "stored_transform": None,
    }
