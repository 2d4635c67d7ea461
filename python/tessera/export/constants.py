# SPDX-License-Identifier: MIT
"""Values that a program needs and nobody trains: buffers, tensor constants of the graph, tables of initial values."""
import torch

from .errors import ExportError
from .program_graph import graphs

ALIASING = ("view", "slice", "select", "transpose", "expand", "unsqueeze", "squeeze", "detach", "alias", "reshape", "to", "contiguous", "t", "permute",
            "narrow")
BATCH_NORMS = ("batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "native_batch_norm")


def tensor_constants(program, module):
    """The graph's own tensors by name: those that are no buffers of the module."""
    buffers = dict(module.named_buffers(remove_duplicate=False))
    values = {}
    for name, value in program.constants.items():
        if name in buffers:
            continue
        if not isinstance(value, torch.Tensor) or type(value).__name__ == "FakeTensor" or value.device.type == "meta":
            raise ExportError(f"the constant {name} of the program has no value")
        values[name] = value.detach()
    return values


def _writes(node):
    """Names of the tensors that a node writes to, by its operator's schema; batch_norm's does not say it."""
    parts = node["target"].split(".")
    if parts[:2] != ["torch", "ops"] or parts[2] == "higher_order":
        return []
    overload = torch.ops
    for part in parts[2:]:
        overload = getattr(overload, part)
    tensors = {argument["name"]: argument["arg"]["as_tensor"]["name"] for argument in node["inputs"] if "as_tensor" in argument["arg"]}
    if parts[3] in BATCH_NORMS:
        training = next((argument["arg"].get("as_bool") for argument in node["inputs"] if argument["name"] in ("training", "train")), False)
        return [tensors[name] for name in ("running_mean", "running_var") if training and name in tensors]
    return [tensors[argument.name] for argument in overload._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name in tensors]


def changed_buffers(graph):
    """Names of the buffers that the program writes to.

    graph: as program_graph.to_json() gives it. Views of buffers are followed.
    """
    body = graph["graph_module"]["graph"]
    owner = {}
    for spec in graph["graph_module"]["signature"]["input_specs"]:
        if "buffer" in spec:
            owner[spec["buffer"]["arg"]["name"]] = spec["buffer"]["buffer_name"]
    changed = set()
    for inner in graphs(body):
        for node in inner["nodes"]:
            changed.update(owner[name] for name in _writes(node) if name in owner)
            name = node["target"].split(".")[-2] if node["target"].count(".") >= 3 else ""
            if name in ALIASING and node["inputs"] and "as_tensor" in node["inputs"][0]["arg"]:
                source = node["inputs"][0]["arg"]["as_tensor"]["name"]
                for output in node["outputs"]:
                    if source in owner and "as_tensor" in output:
                        owner[output["as_tensor"]["name"]] = owner[source]
    return changed
