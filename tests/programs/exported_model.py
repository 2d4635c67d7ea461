# SPDX-License-Identifier: MIT
"""A committed exported program with as many tokens as a tokenizer has; its weights are drawn. For rotary families."""
import json
import pathlib
import shutil

PROGRAMS = pathlib.Path(__file__).resolve().parent.parent / "data" / "programs"
POSITIONS = 1024  # rotary ones, which no table limits
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def with_vocabulary(name, tokens, directory):
    """Copies the program NAME. Only its tables change: extents of other tensors are facts that nothing reads."""
    directory = pathlib.Path(directory)
    shutil.copytree(PROGRAMS / name, directory)
    (directory / "model.safetensors").unlink()
    manifest = json.loads((directory / "program.json").read_text())
    for parameter in manifest["parameters"]:
        if parameter["name"] in TABLES:
            parameter["shape"][0] = tokens
    (directory / "program.json").write_text(json.dumps(manifest))
    config = json.loads((directory / "config.json").read_text())
    config["vocab_size"] = tokens
    config["max_position_embeddings"] = POSITIONS
    (directory / "config.json").write_text(json.dumps(config))
    for path in directory.glob("program.*.json"):
        program = json.loads(path.read_text())
        module = program["graph_module"]
        for spec in module["signature"]["input_specs"]:
            if spec.get("parameter", {}).get("parameter_name") in TABLES:
                sizes = module["graph"]["tensor_values"][spec["parameter"]["arg"]["name"]]["sizes"]
                sizes[0] = {"as_int": tokens}
        path.write_text(json.dumps(program))
    return directory
