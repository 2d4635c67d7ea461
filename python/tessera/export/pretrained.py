# SPDX-License-Identifier: MIT
"""The export of a model of transformers: a program a dtype and mode, configuration, tokenizer, weights."""
import pathlib

import torch

from . import directory, models, names
from .errors import ExportError
from .layers import repeated_layers
from .manifest import manifest
from .programs import MODES, Programs, check_program, write


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
    inputs = {name: _example(name, settings) for name in ("input_ids", *more_inputs)}
    dims = {name: ["batch", "sequence"] for name in inputs}
    programs = Programs(say)
    with directory.new_directory(out, force) as made:
        for dtype in dtypes:
            module, rules = models.build(settings, task, dtype, attention)
            with models.program_forward(module, list(inputs), balance is not None), models.portable_operators():
                for mode in modes:
                    ranges = programs.add(module, dtype, mode, inputs, dims)
                    if check:
                        ranges = check_program(module, programs, dtype, mode, inputs, dims, task, _limits(settings), ranges, say)
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
        write(made, programs, values)
        _bring_files(folder, files, made, weights, settings, module, say)
    return values


def _bring_files(folder, files, made, weights, settings, module, say):
    """Configuration, tokenizer and weights beside the programs; a configuration is written where there is no directory."""
    if folder:
        directory.copy_texts(folder, made)
    if not (made / "config.json").exists():
        settings.architectures = [type(module).__name__]
        settings.save_pretrained(made)
    say(f"weights: {directory.bring_weights(folder, files, made, weights) if folder else 'none; they are drawn by the parameters init'}")


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
