# SPDX-License-Identifier: MIT
"""The program as JSON: models/model.json of torch.export's archive, without what belongs to the host that wrote it."""
import json
import re

import torch
from torch._export.serde.serialize import EnumEncoder, ExportedProgramSerializer, _dataclass_to_dict

from .errors import ExportError

KEPT_METADATA = ("nn_module_stack",)
DROPPED = "torch.ops.aten._assert_tensor_metadata.default"  # what a tensor is was checked while tracing
FOLDER = re.compile(r'(?:^|[\s"\'(,])(/(?:home|root|usr|opt|tmp|work|mnt|var|Users|data|workspace)/[^\s"\']*)')


def to_json(program):
    """The ExportedProgram as a dictionary with a fixed order: one module gives one text.

    Neither weights nor constants nor example inputs are part of it.
    """
    graph = json.loads(json.dumps(_dataclass_to_dict(_serialized(program)), cls=EnumEncoder, allow_nan=False))
    graph["guards_code"] = []  # Python's text; the manifest has the ranges
    graph["torch_version"] = graph["torch_version"].split("+")[0]
    graph["graph_module"]["module_call_graph"] = graph["graph_module"]["module_call_graph"][:1]
    for inner in graphs(graph["graph_module"]["graph"]):
        _strip(inner)
    folders = FOLDER.findall(json.dumps(graph))
    if folders:
        raise ExportError(f"the program would name a folder of this host: {folders[0]}")
    return graph


def _serialized(program):
    """PyTorch's own serialisation; the weights are fakes and would not go through, so none is handed in."""
    state, constants, examples = program._state_dict, program._constants, program._example_inputs
    try:
        program._state_dict, program._example_inputs = {}, None
        program._constants = {name: value for name, value in constants.items() if not isinstance(value, torch.Tensor)}
        program.validate = lambda: None  # the verifier wants the weights
        return ExportedProgramSerializer().serialize(program).exported_program
    finally:
        program._state_dict, program._constants, program._example_inputs = state, constants, examples
        del program.validate


def graphs(graph):
    """The graph and those inside its nodes: regions of higher-order operators."""
    yield graph
    for node in graph["nodes"]:
        for argument in node["inputs"]:
            if "as_graph" in argument["arg"]:
                yield from graphs(argument["arg"]["as_graph"]["graph"])


def _argument(node, name):
    return next(argument["arg"] for argument in node["inputs"] if argument["name"] == name)


def _strip(graph):
    graph["nodes"] = [node for node in graph["nodes"] if node["target"] != DROPPED]
    for node in graph["nodes"]:
        if node["target"] == "torch.ops.aten.dropout.default" and _argument(node, "p") in ({"as_float": 0.0}, {"as_int": 0}):
            _argument(node, "train")["as_bool"] = False  # of rate zero it does nothing in either mode: programs of both stay equal
        node["metadata"] = {key: node["metadata"][key] for key in KEPT_METADATA if key in node["metadata"]}


def text_of(graph):
    """The file's text."""
    return json.dumps(graph, separators=(",", ":"), sort_keys=True, ensure_ascii=True)


def operators(graph):
    """How often each operator is in the program, by name."""
    counts = {}
    for inner in graphs(graph["graph_module"]["graph"]):
        for node in inner["nodes"]:
            counts[node["target"]] = counts.get(node["target"], 0) + 1
    return counts
