# SPDX-License-Identifier: MIT
"""The command line of an export. Exit codes: 0, 2 for what the user can change, 1 for a defect."""
import argparse
import logging
import sys
import warnings

from .errors import ExportError

DTYPES = ("bf16", "fp32", "fp16", "fp64")


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m tessera.export", usage="%(prog)s DIR_OR_NAME OUT [options]\n       %(prog)s --model_config FILE OUT [options]",
        description="Exports a model of transformers as programs that tessera trains without Python.")
    parser.add_argument("paths", nargs="+", metavar="DIR_OR_NAME OUT", help="a directory with config.json, or a name in the Hub's cache; and a new directory")
    parser.add_argument("--model_config", metavar="FILE", help="a config.json; the weights are drawn when training begins")
    parser.add_argument("--dtype", default="bf16,fp32", help="a program for each of these, with commas: bf16, fp32, fp16, fp64 (default: bf16,fp32)")
    parser.add_argument("--task", default="causal", choices=("causal", "classification"), help="what the logits are for (default: causal)")
    parser.add_argument("--attn", default="auto", choices=("auto", "sdpa", "eager"),
                        help="attention: one operator, or products and a softmax (default: what transformers takes)")
    parser.add_argument("--inputs", default="", help="more inputs, with commas: attention_mask for rows padded at the left, position_ids")
    parser.add_argument("--mode", default="train,eval", help="modes with a program, with commas (default: train,eval)")
    parser.add_argument("--weights", default="link", choices=("link", "copy", "none"),
                        help="how OUT gets the safetensors: hard links, which take no room; copies; not at all (default: link)")
    parser.add_argument("--force", action="store_true", help="replace an earlier export at OUT")
    parser.add_argument("--no_check", action="store_true", help="do not compare the program with the module")
    return parser


def _listed(text, known, flag):
    words = [word for word in text.split(",") if word]
    for word in words:
        if word not in known:
            raise ExportError(f"{flag} {text}: {word} is none of {', '.join(known)}")
    return tuple(dict.fromkeys(words))


def _say(text):
    print(f"export: {text}", file=sys.stderr, flush=True)


def _run(arguments):
    paths = arguments.paths
    if len(paths) != (1 if arguments.model_config else 2):
        raise ExportError("give DIR_OR_NAME and OUT, or --model_config FILE and OUT")
    dtypes = _listed(arguments.dtype, DTYPES, "--dtype")
    modes = _listed(arguments.mode, ("train", "eval"), "--mode")
    more = _listed(arguments.inputs, ("attention_mask", "position_ids"), "--inputs")
    if not dtypes or not modes:
        raise ExportError("--dtype and --mode name one program at least")
    try:
        import torch
    except ImportError as error:
        raise ExportError(f"an export needs torch: pip install torch==2.11.0 ({error})") from error
    if torch.__version__.split(".")[:2] != ["2", "11"]:
        raise ExportError(f"programs are of torch 2.11, and this Python has {torch.__version__}: pip install torch==2.11.0")
    try:
        from .pretrained import export_pretrained
    except ImportError as error:
        raise ExportError(f"an export needs safetensors: pip install safetensors ({error})") from error

    values = export_pretrained(None if arguments.model_config else paths[0], paths[-1], dtypes=dtypes, task=arguments.task,
                               attention=None if arguments.attn == "auto" else arguments.attn, config=arguments.model_config,
                               weights=arguments.weights, check=not arguments.no_check, force=arguments.force, more_inputs=more, modes=modes, say=_say)
    layers = ", ".join(values["layers"]) or "none: the program is one block"
    _say(f"{paths[-1]}: {len(set(row['file'] for row in values['programs']))} programs, {len(values['parameters'])} parameters, layers {layers}")


def main(words=None):
    """Runs the command; returns its exit code."""
    warnings.filterwarnings("ignore")
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)
    try:
        _run(_parser().parse_args(words))
    except ExportError as error:
        print(f"E export: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
