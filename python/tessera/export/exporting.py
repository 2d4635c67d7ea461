# SPDX-License-Identifier: MIT
"""The export of a module or of a model of transformers: one program a dtype and mode, and the files around them."""
import contextlib
import json
import pathlib

import torch
from safetensors.torch import save_file

from . import constants as constants_of
from . import directory, models, names
from .check import Check
from .errors import ExportError
from .initial_values import reset_rules
from .layers import repeated_layers
from .manifest import DTYPE_NAMES, manifest
from .manifest_text import manifest_text
from .program_graph import text_of, to_json
from .ranges import allowed_ranges
from .tracing import trace

MODES = ("train", "eval")
CHECKED_NUMBERS = 1 << 26  # parameters up to which a check draws weights; above it shapes are compared


class _Programs:
    """The programs of one export: traces them, and keeps equal ones once."""

    def __init__(self, say):
        self.rows, self.texts, self.graphs, self.constants, self.changed = [], {}, {}, {}, set()
        self.ranges, self._say = None, say

    def add(self, module, dtype, mode, inputs, dims):
        """Traces the module in this mode; returns the sizes that this program allows. inputs and dims: as trace() takes them."""
        module.train(mode == "train")
        traced = trace(module, inputs, dims)
        ranges = allowed_ranges(traced, inputs, dims)
        graph = to_json(traced)
        self.changed |= constants_of.changed_buffers(graph)
        self.graphs[dtype, mode] = graph
        for name, value in constants_of.tensor_constants(traced, module).items():
            self.constants[f"{DTYPE_NAMES[dtype]}.{mode}/{name}"] = value.contiguous()
        for name, value in module.named_buffers(remove_duplicate=False):
            plain = self.constants.setdefault(name, value.detach().contiguous())
            if plain.dtype != value.dtype or not torch.equal(plain, value):
                self.constants[f"{DTYPE_NAMES[dtype]}.{mode}/{name}"] = value.detach().contiguous()
        text = text_of(graph)
        file = next((known for known, other in self.texts.items() if other == text), f"program.{DTYPE_NAMES[dtype]}.{mode}.json")
        self.texts[file] = text
        self.rows.append({"dtype": DTYPE_NAMES[dtype], "mode": mode, "file": file})
        self._say(f"{DTYPE_NAMES[dtype]} {mode}: {len(graph['graph_module']['graph']['nodes'])} operators")
        return ranges

    def narrow(self, ranges):
        """All programs of a directory allow what each of them allows."""
        self.ranges = ranges if self.ranges is None else _narrower(self.ranges, ranges)

    def values(self, dtype, mode):
        """Buffers and constants as a program of this dtype and mode finds them."""
        prefix = f"{DTYPE_NAMES[dtype]}.{mode}/"
        own = {name.removeprefix(prefix): value for name, value in self.constants.items() if name.startswith(prefix)}
        return {**self.constants, **own}


def _narrower(first, second):
    result = {}
    for name, (low, high) in first.items():
        other_low, other_high = second[name]
        tops = [top for top in (high, other_high) if top is not None]
        result[name] = [max(low, other_low), min(tops) if tops else None]
    return result


def _write(made, programs, values):
    for file, text in programs.texts.items():
        (made / file).write_text(text + "\n")
    save_file({name: value.clone() for name, value in programs.constants.items()}, made / "program.constants.safetensors")
    (made / "program.json").write_text(manifest_text(values))


def _check(module, programs, dtype, mode, inputs, dims, task, limits, ranges, say):
    """Compares the program with the module; returns its ranges, narrowed and widened by what was found at their ends."""
    module.train(mode == "train")
    count = sum(value.numel() for value in module.parameters())
    check = Check(module, programs.graphs[dtype, mode], programs.values(dtype, mode), inputs, dims, task, DTYPE_NAMES[dtype], limits,
                  by_values=count <= CHECKED_NUMBERS)
    found, refused = check.run(ranges)
    for name, size, why in refused:
        say(f"{DTYPE_NAMES[dtype]} {mode}: a size of {size} for {name} is refused: {why}")
    say(f"{DTYPE_NAMES[dtype]} {mode}: checked, " + ("losses and gradients" if check.by_values else "shapes only"))
    return found


def export_pretrained(source, out, dtypes=("bf16", "fp32"), task="causal", attention=None, config=None, weights="link", check=True,
                      force=False, more_inputs=(), modes=MODES, say=lambda text: None):
    """Exports a model of transformers.

    source: a directory with config.json, or a name in the Hub's cache; None with `config`, a config.json without weights.
    out: the directory to write. dtypes: of models.DTYPES. task: "causal" or "classification". attention: "sdpa", "eager", None.
    weights: "link", "copy" or "none". more_inputs: "attention_mask", "position_ids". say: told what happens, a line at a time.
    Raises ExportError.
    """
    settings = models.read_config(config or source)
    folder = pathlib.Path(source) if source and pathlib.Path(source).is_dir() else _cached(source) if source else None
    files = directory.weight_files(folder) if folder else []
    balance = models.balance_weight(settings) if task == "causal" else None
    if task == "classification" and settings.get_text_config().pad_token_id is None:
        raise ExportError("classification needs pad_token_id in config.json: the last real token of a row is the one that counts")
    dims, inputs = {}, {}
    for name in ("input_ids", *more_inputs):
        dims[name] = ["batch", "sequence"]
        inputs[name] = _example(name, settings)
    programs = _Programs(say)
    with directory.new_directory(out, force) as made:
        for dtype in dtypes:
            module, rules = models.build(settings, task, dtype, attention)
            with models.program_forward(module, list(inputs), balance is not None), models.portable_operators():
                for mode in modes:
                    ranges = programs.add(module, dtype, mode, inputs, dims)
                    if check:
                        ranges = _check(module, programs, dtype, mode, inputs, dims, task, _limits(settings), ranges, say)
                    programs.narrow(ranges)
        shapes = directory.stored_shapes(folder, files) if files else None
        stored = _checked_forms(module, names.stored_forms(module, shapes), shapes or names.saved_shapes(module), say)
        outputs = [{"name": "logits"}] + ([{"name": "auxiliary_loss", "weight": balance}] if balance is not None else [])
        first = programs.graphs[dtypes[0], modes[0]]
        values = manifest(name=pathlib.Path(out).name, task=task, model_type=settings.model_type, module=module, inputs=inputs, dims=dims,
                          ranges=programs.ranges, outputs=outputs, loss=task, programs=programs.rows, layers=repeated_layers(module, first),
                          stored=stored, rules=rules, changed=programs.changed, constants=programs.constants,
                          transformers_version=models.load_transformers().__version__)
        _say_undrawn(values, say)
        _write(made, programs, values)
        if folder:
            directory.copy_texts(folder, made)
        if not (made / "config.json").exists():
            settings.architectures = [type(module).__name__]
            settings.save_pretrained(made)
        say(f"weights: {directory.bring_weights(folder, files, made, weights) if folder else 'none; they are drawn by the parameters init'}")
    return values


def _cached(name):
    """The folder of a name in the Hub's cache."""
    from huggingface_hub import snapshot_download

    try:
        return pathlib.Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]))
    except Exception as error:
        raise ExportError(f"{name} is neither a directory nor a model of the Hub that can be had: {type(error).__name__}") from error


def _example(name, settings):
    rows, tokens = 3, 24
    if name == "input_ids":
        return torch.randint(0, settings.get_text_config().vocab_size, (rows, tokens), generator=torch.Generator().manual_seed(0))
    if name == "attention_mask":
        return torch.ones((rows, tokens), dtype=torch.int64)
    if name == "position_ids":
        return torch.arange(tokens).repeat(rows, 1)
    raise ExportError(f"the input {name} is not known; attention_mask and position_ids are")


def _limits(settings):
    """What the inputs of a language model may be: ids below the vocabulary, as many tokens as it has positions."""
    config = settings.get_text_config()
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 1 << 20
    return {"vocabulary": config.vocab_size, "pad": config.pad_token_id, "positions": positions}


def _checked_forms(module, forms, shapes, say):
    """Forms whose shapes are the parameters'; raises where one is not, says which parameters the file lacks."""
    missing = []
    for name, value in module.named_parameters():
        form = forms.get(name)
        if form is None:
            missing.append(name)
        elif names.form_shape(form, shapes) != tuple(value.shape):
            raise ExportError(f"{name} is {list(value.shape)} in the model and {list(names.form_shape(form, shapes))} in the file")
    if missing:
        say(f"{len(missing)} parameters are not in the weights and will be drawn, such as {missing[0]}")
    return forms


def _say_undrawn(values, say):
    without = [entry["name"] for entry in values["parameters"] if entry["init"] is None]
    if without:
        say(f"{len(without)} parameters have no rule for initial values, such as {without[0]}; the program needs weights for them")


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
                  say=lambda text: None):
    """Exports any module of torch whose forward returns a loss, or the loss's sum and the count to divide it by.

    module: a torch.nn.Module. example: tensors by the names of the forward's arguments; sizes that shall be free are 2 at least.
    dynamic: names of free dimensions, as {"x": {0: "batch"}}; a dimension without a name is fixed.
    out: the directory to write. weights: whether model.safetensors with the module's values is written.
    The module keeps its values, dtype and mode. Returns the manifest. Raises ExportError.
    """
    unknown = set(dynamic) - set(example)
    if unknown:
        raise ExportError(f"dynamic names {sorted(unknown)[0]}, which is none of the example's inputs")
    dims = {key: [dynamic.get(key, {}).get(place, size) for place, size in enumerate(value.shape)] for key, value in example.items()}
    for key, value in example.items():
        for place, size in enumerate(dims[key]):
            if isinstance(size, str) and value.shape[place] < 2:
                raise ExportError(f"the example's {key} has a size of {value.shape[place]} where {size} shall be free; give 2 at least")
    programs, rules = _Programs(say), reset_rules(module)
    with directory.new_directory(out, force) as made:
        for dtype in dtypes:
            given = {key: _converted(value, models.DTYPES[dtype]) for key, value in example.items()}
            with _in_dtype(module, models.DTYPES[dtype]):
                for mode in modes:
                    ranges = programs.add(module, dtype, mode, given, dims)
                    if check:
                        ranges = _check(module, programs, dtype, mode, given, dims, "module", {}, ranges, say)
                    programs.narrow(ranges)
        first = programs.graphs[dtypes[0], modes[0]]
        count = len(first["graph_module"]["graph"]["outputs"])
        if count not in (1, 2):
            raise ExportError(f"the module returns {count} tensors; return a loss, or the loss's sum and a count")
        outputs = [{"name": "loss"}] if count == 1 else [{"name": "loss_sum"}, {"name": "count"}]
        state = {key: value for key, value in module.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}
        kept, stored = {}, {}
        for key, value in state.items():
            stored[key] = kept.setdefault(id(value), key)
        values = manifest(name=name or type(module).__name__, task="module", model_type=type(module).__name__, module=module,
                          inputs=example, dims=dims, ranges=programs.ranges, outputs=outputs, loss="mean" if count == 1 else "sum_count",
                          programs=programs.rows, layers=repeated_layers(module, first), stored=stored if weights else {}, rules=rules,
                          changed=programs.changed, constants=programs.constants, transformers_version=None)
        _write(made, programs, values)
        if weights:
            save_file({key: state[key].detach().cpu().contiguous().clone() for key in kept.values()}, made / "model.safetensors")
    return values
