# SPDX-License-Identifier: MIT
"""final/ holds the tensors that transformers and peft look for, by name and shape, whatever the layout.

Usage: export_names.py SOURCE_ROOT BIN_FOLDER [MPIRUN] [--write PYTHON]

export_names.json has each case's program, flags and tensors. --write fills in the tensors as transformers and peft save them, by an
interpreter that has both.
"""
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

from support import Checker, launch

EXPECTED = pathlib.Path(__file__).with_name("export_names.json")
SAVE = """
import json, sys
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
final, base, out, adapter, classes = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "1", sys.argv[5] == "1"
kind = AutoModelForSequenceClassification if classes else AutoModelForCausalLM
model = kind.from_config(AutoConfig.from_pretrained(base))
if adapter:
    from peft import PeftConfig, get_peft_model
    config = PeftConfig.from_pretrained(final)
    config.inference_mode = False
    model = get_peft_model(model, config)
model.save_pretrained(out)
"""
LAYOUTS = {
    "ddp": ["--ranks", "2", "--strategy", "ddp"],
    "zero2": ["--ranks", "2", "--strategy", "zero2"],
    "zero3": ["--ranks", "2", "--strategy", "zero3"],
    "fsdp of two replicas": ["--ranks", "4", "--strategy", "fsdp", "--shard_ranks", "2"],
    "pipeline": ["--ranks", "2", "--strategy", "ddp", "--pipeline_parallel", "2"],
    "split backward": ["--ranks", "4", "--strategy", "zero1", "--pipeline_parallel", "2", "--pipeline_schedule", "zbh1"],
    "interleaved": ["--ranks", "2", "--strategy", "ddp", "--pipeline_parallel", "2", "--pipeline_schedule", "interleaved", "--pipeline_chunks", "2"],
    "shared vocabulary": ["--ranks", "2", "--strategy", "ddp", "--pipeline_parallel", "2", "--pipeline_vocabulary", "shared"],
    "tensor": ["--ranks", "2", "--strategy", "ddp", "--tensor_parallel", "2"],
    "three axes": ["--ranks", "8", "--strategy", "zero2", "--pipeline_parallel", "2", "--tensor_parallel", "2"],
    "pipeline and fsdp": ["--ranks", "4", "--strategy", "fsdp", "--pipeline_parallel", "2"],
}
SOME = ("zero3", "interleaved", "shared vocabulary", "three axes")  # of cases that are no adapters
COMMON = ["--random_rows", "16", "--random_row_length", "8", "--max_seq_length", "12", "--max_steps", "1", "--per_device_train_batch_size", "4",
          "--report_to", "none"]

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_export_names_"))


def shapes(directory):
    """Name -> shape of everything in the directory's safetensors files."""
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        found.update({name: value["shape"] for name, value in header.items() if name != "__metadata__"})
    return dict(sorted(found.items()))


def run(name, case, layout):
    result = launch(case["program"], [*case["flags"], *COMMON, *layout, "--output_dir", str(folder / name)])
    check.that(result.code == 0, f"{name}: trained", result)
    return folder / name / "final"


def files(directory):
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


def difference(found, expected):
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    other = sorted(name for name in found.keys() & expected.keys() if found[name] != expected[name])
    return f"missing {missing[:4]}, not expected {extra[:4]}, of another shape {other[:4]}"


cases = json.loads(EXPECTED.read_text())
for name, case in cases.items():
    adapter = "--lora_r" in case["flags"]
    single = run(name, case, [])
    if "--write" in sys.argv:
        python, classes = sys.argv[sys.argv.index("--write") + 1], case["program"].endswith("classification")
        base = single if not adapter else folder / case["base"] / "final"
        theirs = folder / f"{name} saved"
        subprocess.run([python, "-c", SAVE, str(single), str(base), str(theirs), str(int(adapter)), str(int(classes))], check=True)
        case["tensors"] = shapes(theirs)
    expected = case["tensors"]
    found = shapes(single)
    check.that(found == expected, f"{name}, one rank: {difference(found, expected)}")
    for layout, flags in LAYOUTS.items():
        if "--write" in sys.argv or layout not in (LAYOUTS if name == "adapter" else SOME):
            continue
        final = run(f"{name}, {layout}", case, flags)
        found = shapes(final)
        check.that(found == expected, f"{name}, {layout}: {difference(found, expected)}")
        check.that(files(final) == files(single), f"{name}, {layout}: files {sorted(files(final))}")
        if name == "adapter":
            merged = folder / f"merged, {layout}"
            result = launch("tessera-checkpoint", ["merge", str(folder / case["base"] / "final"), str(final), str(merged)])
            check.that(result.code == 0 and shapes(merged) == cases[case["base"]]["tensors"], f"{name}, {layout}: merged", result)
if "--write" in sys.argv:
    lines = [f" {json.dumps(name)}: {{\n  " + ",\n  ".join(
        f'"{key}": ' + (json.dumps(value) if key != "tensors" else "{\n   " + ",\n   ".join(
            f"{json.dumps(tensor)}: {shape}" for tensor, shape in value.items()) + "}") for key, value in case.items()) + "}"
             for name, case in cases.items()]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
shutil.rmtree(folder)
check.finish()
