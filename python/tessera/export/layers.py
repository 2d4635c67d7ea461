# SPDX-License-Identifier: MIT
"""Repeated layers: the containers whose numbered children the program runs one after another."""
import re

import torch


def _containers(module):
    """Paths of the outermost ModuleLists with parameters, and of such Sequentials whose children are of one class."""
    found = []
    for path, part in module.named_modules():
        inside = any(path.startswith(other + ".") for other in found)
        alike = isinstance(part, torch.nn.ModuleList) or (isinstance(part, torch.nn.Sequential) and len({type(child) for child in part}) == 1)
        if path and not inside and alike and any(True for _ in part.parameters()):
            found.append(path)
    return found


def _paths(node):
    """Paths of the modules that a node lies in, the outermost first."""
    stack = node["metadata"].get("nn_module_stack", "")
    return [entry.split(",")[1] for entry in stack.split(";") if entry.count(",") >= 2]


def _number(node, container):
    """The child of the container that a node lies in; None outside."""
    for path in _paths(node):
        found = re.match(rf"{re.escape(container)}\.(\d+)(?:\.|$)", path)
        if found:
            return int(found.group(1))
    return None


def repeated_layers(module, graph):
    """Paths of the containers that the program can be cut at, in the order in which it runs them.

    A container whose children run again, in another order or between one another is left out: no cut keeps its order.
    graph: as program_graph.to_json() gives it.
    """
    nodes, found = graph["graph_module"]["graph"]["nodes"], []
    for container in _containers(module):
        runs = []
        for place, node in enumerate(nodes):
            number = _number(node, container)
            if number is not None and (not runs or runs[-1][0] != number):
                runs.append((number, place))
        numbers = [number for number, _ in runs]
        if numbers and numbers == sorted(set(numbers)):
            found.append((runs[0][1], container))
    return [container for _, container in sorted(found)]
