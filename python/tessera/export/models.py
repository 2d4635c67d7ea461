# SPDX-License-Identifier: MIT
"""Models of transformers: built from a configuration with parameters on meta, with a forward that a program can have."""
import contextlib
import inspect
import json
import pathlib
import types

import torch
import torch._meta_registrations

from . import gated_delta
from .errors import ExportError, first_sentence
from .initial_values import parameters_on_meta

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
TASKS = {"causal": "AutoModelForCausalLM", "classification": "AutoModelForSequenceClassification"}


def load_transformers():
    """The module, or an ExportError that says what to install."""
    try:
        import transformers as module
    except ImportError as error:
        raise ExportError("models of the Hub need transformers: pip install transformers==5.24.0") from error
    module.logging.set_verbosity_error()
    return module


def read_config(source):
    """The configuration of a directory, of a config.json, or of a name in the Hub's cache."""
    path = pathlib.Path(source)
    if path.suffix == ".json" and not path.is_dir():
        if not path.is_file():
            raise ExportError(f"{path} is not there; --model_config takes a config.json")
        try:
            kinds = json.loads(path.read_text())
        except ValueError as error:
            raise ExportError(f"{path} is no JSON: {error}") from error
        if "model_type" not in kinds:
            raise ExportError(f"{path} says no model_type")
        path = path.parent if path.name == "config.json" else path
    elif path.is_dir() and not (path / "config.json").is_file():
        raise ExportError(f"{path} holds no config.json")
    auto = load_transformers().AutoConfig
    try:
        config = auto.from_pretrained(str(path))
    except Exception as error:
        raise ExportError(f"the configuration of {source} cannot be read: {first_sentence(error)}") from error
    if getattr(config, "quantization_config", None):
        raise ExportError(f"{source} holds quantised weights, which a program cannot train; save them in bf16 first (model.dequantize())")
    return config


def build(config, task, dtype, attention=None):
    """The model in train mode, and the rules of its parameters' initial values by name.

    dtype: of DTYPES. attention: "sdpa", "eager", or None for transformers' choice.
    """
    auto = getattr(load_transformers(), TASKS[task])
    options = {"attn_implementation": attention} if attention else {}
    try:
        with parameters_on_meta() as watch:
            model = auto.from_config(config, dtype=DTYPES[dtype], **options)
    except Exception as error:
        raise ExportError(f"transformers cannot build this model for {task}: {first_sentence(error)}") from error
    _keep_buffers_in_fp32(model)
    return model.train(), {name: watch.rule(value) for name, value in model.named_parameters()}


def _keep_buffers_in_fp32(model):
    """Buffers that transformers loads as fp32 whatever the dtype of the weights is."""
    names = getattr(model, "_keep_in_fp32_modules_strict", None) or []
    for name, value in model.named_buffers():
        if value.is_floating_point() and any(key in name.split(".") for key in names):
            value.data = value.data.float()


def balance_weight(config):
    """The factor of the experts' balance loss where the configuration asks for it (output_router_logits), else None."""
    config = config.get_text_config()
    if not getattr(config, "output_router_logits", False):
        return None
    for name in ("router_aux_loss_coef", "aux_loss_coef"):
        if getattr(config, name, None) is not None:
            return float(getattr(config, name))
    return None


@contextlib.contextmanager
def program_forward(model, inputs, balanced):
    """Within it the model's forward takes `inputs` by name and returns logits, with the balance loss behind them if `balanced`."""
    original = model.forward

    def forward(self, *args, **named):
        more = {"output_router_logits": True} if balanced else {}
        result = original(*args, **named, use_cache=False, **more) if _takes_cache(original) else original(*args, **named, **more)
        return (result.logits, result.aux_loss) if balanced else result.logits

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in ("self", *inputs)])
    model.forward = types.MethodType(forward, model)
    try:
        yield model
    finally:
        del model.forward


def _takes_cache(forward):
    parameters = inspect.signature(forward).parameters
    return "use_cache" in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


@contextlib.contextmanager
def portable_operators():
    """Within it transformers takes operators that every LibTorch has, not its own registered for CPUs, and no loops over tokens where it need not."""
    with contextlib.ExitStack() as changes:
        with contextlib.suppress(ImportError):
            from transformers.integrations import moe

            changes.enter_context(_replaced(moe, "_can_use_grouped_mm", lambda _: lambda *_, **__: True))
            changes.enter_context(_replaced(torch._meta_registrations, "_meta_grouped_mm_common", _any_dtype))
        for module in gated_delta.modules():
            changes.enter_context(_replaced(module, gated_delta.RULE, gated_delta.as_one_chunk))
            changes.enter_context(_replaced(module, "is_torchdynamo_exporting", gated_delta.solves_triangular))
        yield


@contextlib.contextmanager
def _replaced(module, name, change):
    original = getattr(module, name, None)
    if original is not None:
        setattr(module, name, change(original))
    try:
        yield
    finally:
        if original is not None:
            setattr(module, name, original)


def _any_dtype(shapes_of_bf16):
    """Shapes of grouped_mm in every dtype: the operator takes fp32, too, but torch 2.11's rule for its shapes asks for bf16."""
    def shapes(mat_a, mat_b, scale_a, scale_b, **more):
        if mat_a.dtype == torch.bfloat16 or scale_a is not None:
            return shapes_of_bf16(mat_a, mat_b, scale_a=scale_a, scale_b=scale_b, **more)
        narrow = [mat.to(torch.bfloat16) for mat in (mat_a, mat_b)]
        return shapes_of_bf16(*narrow, scale_a=None, scale_b=None, **{**more, "out_dtype": torch.bfloat16}).to(more.get("out_dtype") or mat_a.dtype)

    return shapes
