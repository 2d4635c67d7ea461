# SPDX-License-Identifier: MIT
"""--recovery_test: what it does and says, under two kinds of launcher, and what it makes of a run that cannot be made.

Usage: recovery_test.py SOURCE_ROOT BIN_FOLDER [MPIRUN]
"""
import pathlib
import re
import tempfile

from support import DATA, MPIRUN, Checker, launch

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_rehearse_"))
common = ["--model_config", "bloom-tiny", "--max_seq_length", "64", "--per_device_train_batch_size", "2", "--output_dir", str(folder), "--recovery_test"]
answers = ["--tokenizer", str(DATA / "tokenizer"), "--train_file", str(DATA / "squad_sample.json")]
LINES = [r"training on \d+ rank", r"a step takes [\d.]+ m?s; a checkpoint has [\d.e-]+ GB", r"a save stalls the run for .* % of ten steps",
         r"--save_steps \d+", r"rank \d+ killed behind step \d+", r"step 7 was done .*; the losses are those of before, bit for bit",
         r"gone on as (.*): step 7 was done"]


def recovery_test(name, arguments, elsewhere, mpi_ranks=0, data=answers):
    result = launch("tessera-finetune-squad", [*common, *data, *arguments], mpi_ranks=mpi_ranks)
    check.that(result.code == 0, f"{name}: ends well", result)
    at = 0
    for line in LINES:
        found = re.compile("rehearsal: .*" + line).search(result.text, at)
        check.that(found, f"{name}: says '{line}'", result)
        at = found.end() if found else at
    check.that(f"gone on as {elsewhere}: step" in result.text, f"{name}: goes on as {elsewhere}", result)
    check.that(list(folder.iterdir()) == [], f"{name}: leaves nothing behind")


recovery_test("one rank", ["--dtype", "bf16"], "--offload optimizer")
ZERO3 = "--strategy zero3 --offload optimizer"
recovery_test("in-process ranks", ["--ranks", "2", "--strategy", "fsdp", "--offload", "optimizer"], "--strategy zero3 --offload optimizer+params")
recovery_test("steps of a few milliseconds", [], "--offload optimizer", data=["--random_rows", "64", "--random_row_length", "6"])
if MPIRUN:
    recovery_test("a pipeline", ["--pipeline_parallel", "2", "--gradient_accumulation_steps", "2"],
             ZERO3 + " --pipeline_parallel 1 --gradient_accumulation_steps 1", mpi_ranks=2)

strange = folder / "rehearsal"
strange.mkdir()
(strange / "mine").write_text("x")
result = launch("tessera-finetune-squad", [*common, *answers])
check.that(result.code == 2 and "is not of a rehearsal" in result.text and (strange / "mine").exists(), "a directory of somebody else's stays", result)
(strange / "mine").unlink()
strange.rmdir()

result = launch("tessera-finetune-squad", [*common, *answers, "--ranks", "3", "--tensor_parallel", "3"])
check.that(result.code == 2 and "rank 0 ended with exit code 2 while training" in result.text, "a run that is refused ends as it would", result)
check.finish()
