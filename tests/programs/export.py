# SPDX-License-Identifier: MIT
"""What tessera-checkpoint exports of a run's last checkpoint is what the run itself writes into final/.

Usage: export.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import json
import pathlib
import shutil
import tempfile

from exported_model import with_vocabulary
from support import DATA, Checker, launch

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_export_"))
TOOL = "tessera-checkpoint"
common = ["--tokenizer", str(DATA / "tokenizer"), "--max_seq_length", "64", "--learning_rate", "1e-3", "--max_steps", "2",
          "--per_device_train_batch_size", "2", "--save_strategy", "steps", "--save_steps", "2"]
squad = ["--train_file", str(DATA / "squad_sample.json"), "--train_slice", "0:8"]
labels = ["--train_file", str(DATA / "classification_train.csv"), "--train_slice", "0:8"]

# Experts are one parameter there, and tensors of their own in files.
experts = str(with_vocabulary("olmoe", 2000, folder / "program"))
for name, program, model, data, layout in [
        ("experts", "tessera-finetune-squad", experts, squad, ["--ranks", "2", "--strategy", "zero3"]),
        ("mixtral", "tessera-finetune-squad", "mixtral-tiny", squad, ["--ranks", "2", "--strategy", "fsdp"]),
        ("bloom", "tessera-finetune-squad", "bloom-tiny", squad, ["--strategy", "zero3", "--ranks", "2"]),
        ("gpt2", "tessera-finetune-squad", "gpt2-tiny", squad, ["--ranks", "4", "--strategy", "ddp", "--tensor_parallel", "2"]),
        ("llama", "tessera-finetune-squad", "llama-tiny", squad, ["--ranks", "2", "--strategy", "ddp", "--pipeline_parallel", "2"]),
        ("classes", "tessera-finetune-classification", "bloom-tiny", labels, ["--ranks", "2", "--strategy", "zero1"])]:
    out, model_out = folder / name, folder / f"{name}-export"
    result = launch(program, ["--model_config", model, *common, *data, *layout, "--output_dir", str(out)])
    check.that(result.code == 0, f"{name}: trained", result)
    verified = launch(TOOL, ["verify", str(out)])
    check.that(verified.code == 0 and "every byte has the hash" in verified.text, f"{name}: verified", verified)
    exported = launch(TOOL, ["export", str(out), str(model_out)])
    check.that(exported.code == 0 and f"tokenizer of {out}/final" in exported.text, f"{name}: exported with the tokenizer of final/", exported)
    same = launch(TOOL, ["diff", str(out / "final"), str(model_out)])
    check.that(same.code == 0 and "0 differ" in same.text, f"{name}: the tensors of final/", same)
    if result.code or exported.code:
        continue
    check.that(json.loads((out / "final/config.json").read_text()) == json.loads((model_out / "config.json").read_text()),
               f"{name}: the config.json of final/")
    files = {path.name for path in (out / "final").iterdir() if not path.name.startswith("program")}
    check.that(files == {path.name for path in model_out.iterdir()}, f"{name}: the files of final/: {files}")

# A checkpoint does not hold the program: it is named.
alone = launch("tessera-generate", ["--checkpoint", str(folder / "experts"), "--tokenizer", str(DATA / "tokenizer"), "--prompt", "There"])
check.that(alone.code == 2 and "--checkpoint" in alone.text and "--model DIR" in alone.text, "a program's checkpoint alone is refused", alone)
texts = [launch("tessera-generate", [*source, "--tokenizer", str(DATA / "tokenizer"), "--prompt", "There", "--max_new_tokens", "5", "--ignore_eos"])
         for source in (["--checkpoint", str(folder / "experts"), "--model", experts], ["--model", str(folder / "experts" / "final")])]
check.that(texts[0].code == 0 and texts[0].text == texts[1].text, "a program's checkpoint writes what final/ writes", texts[0])

# Without final/ the tokenizer is the user's to name.
shutil.rmtree(folder / "gpt2" / "final")
bare = launch(TOOL, ["export", str(folder / "gpt2"), str(folder / "bare")])
check.that(bare.code == 0 and f"no tokenizer; --tokenizer DIR copies one (the run's was {DATA}/tokenizer)" in bare.text, "exported without a tokenizer", bare)
check.that(not list((folder / "bare").glob("tokenizer*")), "no tokenizer is made up")
given = launch(TOOL, ["export", str(folder / "gpt2"), str(folder / "given"), "--tokenizer", str(DATA / "tokenizer")])
check.that(given.code == 0 and (folder / "given" / "tokenizer.json").exists(), "exported with a given tokenizer", given)

shutil.rmtree(folder)
check.finish()
