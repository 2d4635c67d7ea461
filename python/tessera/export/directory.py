# SPDX-License-Identifier: MIT
"""The directory that is written: beside it first, then renamed, so that no half of an export is left under its name."""
import contextlib
import json
import os
import pathlib
import shutil

from .errors import ExportError

COPIED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
          "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json", "spiece.model")
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


@contextlib.contextmanager
def new_directory(out, force=False):
    """Yields a fresh directory beside `out` that takes its name at the end; an error removes it.

    force: an earlier export at `out` (a directory with program.json) is replaced.
    """
    out = pathlib.Path(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if not force:
            raise ExportError(f"{out} is there already; name a new directory, or say --force to replace an export")
        if not (out / "program.json").is_file():
            raise ExportError(f"{out} holds no export, so it is not replaced; name a new directory")
    made = out.with_name(out.name + ".tessera.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
    except OSError as error:
        raise ExportError(f"{made} cannot be made: {error.strerror}") from error
    try:
        yield made
        if out.exists():
            shutil.rmtree(out)
        made.rename(out)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def copy_texts(source, made):
    """Copies configuration and tokenizer, those files that are there."""
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, made / name)


def weight_files(source):
    """The safetensors of a directory, with their index if there is one; [] without weights."""
    if (source / WEIGHTS[1]).is_file():
        try:
            names = set(json.loads((source / WEIGHTS[1]).read_text())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExportError(f"{source / WEIGHTS[1]} is no index of safetensors: {error}") from error
        for name in names:
            if pathlib.Path(name).name != name or not (source / name).is_file():
                raise ExportError(f"{source / WEIGHTS[1]} names {name}, which is not in the directory")
        return [WEIGHTS[1], *sorted(names)]
    if (source / WEIGHTS[0]).is_file():
        return [WEIGHTS[0]]
    old = [path.name for path in source.glob("*.bin")]
    if old:
        raise ExportError(f"{source} has its weights in {old[0]}; save them as safetensors first (model.save_pretrained)")
    return []


def stored_shapes(source, files):
    """Shapes of the safetensors' tensors by name, from the files' headers."""
    shapes = {}
    for name in files:
        if not name.endswith(".safetensors"):
            continue
        try:
            with open(source / name, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if length > os.path.getsize(source / name):
                    raise ValueError("its header is longer than the file")
                header = json.loads(file.read(length))
            shapes.update({key: tuple(entry["shape"]) for key, entry in header.items() if key != "__metadata__"})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExportError(f"{source / name} is no safetensors file: {error}") from error
    return shapes


def bring_weights(source, files, made, how):
    """Brings the weights into the new directory; says how: "linked", "copied" or "left out".

    how: "link" (a hard link, which takes no room; a copy where the file system has none), "copy" or "none".
    """
    if how == "none" or not files:
        return "left out"
    linked = how == "link"
    for name in files:
        origin = (source / name).resolve()  # the Hub's cache holds links
        if linked and name.endswith(".safetensors"):
            try:
                os.link(origin, made / name)
                continue
            except OSError:
                linked = False
        shutil.copyfile(origin, made / name)
    return "linked" if linked else "copied"
