# SPDX-License-Identifier: MIT
"""Work that must not be lost: runs that race for a directory, Ctrl-C at any moment, disks that are full and folders that may not be written.

Usage: lost_work.py SOURCE_ROOT BIN_FOLDER [MPIRUN] [--races N] [--interrupts N] [--every-kind] [--seed N]

--races: of two runs for one directory, with and without --overwrite_output_dir in turn. --interrupts: Ctrl-C at so many random moments.
--every-kind: no space and no permission at each kind of file, else at some.
"""
import errno
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from start_ranks import free_port  # noqa: E402
from support import BIN, DATA, TIME_LIMIT_S, Checker, Result, launch, read_events  # noqa: E402


def number(flag, default):
    return int(sys.argv[sys.argv.index(flag) + 1]) if flag in sys.argv else default


RACES, INTERRUPTS, EVERY_KIND, SEED = number("--races", 3), number("--interrupts", 3), "--every-kind" in sys.argv, number("--seed", 1)
SQUAD, CLASSIFICATION = "tessera-finetune-squad", "tessera-finetune-classification"
RANDOM = ["--model_config", "bloom-tiny", "--random_rows", "10", "--max_seq_length", "16", "--per_device_train_batch_size", "2", "--learning_rate", "1e-4",
          "--lr_scheduler_type", "constant"]
FOREVER = ["--max_steps", "100000"]
signal.signal(signal.SIGINT, signal.default_int_handler)  # where a shell started this behind it, the programs would ignore it, too
check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_lost_work_"))
draw = random.Random(SEED)


class Run:
    """One process a rank."""

    def __init__(self, out, *arguments, ranks=1, environment=None):
        self.out, self.log = out, folder / f"{out.name}-{time.monotonic_ns()}.log"
        self.command = [str(BIN / SQUAD), *arguments, "--output_dir", str(out)]
        port = free_port() if ranks > 1 else 0
        with self.log.open("wb") as log:
            self.ranks = [subprocess.Popen(self.command, stdout=log, stderr=log, env={**os.environ, **(environment or {}), **({} if ranks == 1 else {
                "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "TESSERA_JOB_SECRET": "none"})}) for rank in range(ranks)]

    def send(self, what):
        self.ranks[-1].send_signal(what)

    def ended(self):
        return all(rank.poll() is not None for rank in self.ranks)

    def wait(self):
        codes = [rank.wait(TIME_LIMIT_S) for rank in self.ranks]
        text = self.log.read_text(errors="replace")
        return Result(codes[0] if len(set(codes)) == 1 else codes, text, " ".join(self.command))

    def step(self):
        """The last one in metrics.jsonl."""
        try:
            lines = (self.out / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return 0
        return sum('"event":"step"' in line for line in lines)


def wait_for(condition, what):
    deadline = time.monotonic() + TIME_LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not happen")
        time.sleep(0.002)


def require_whole(name, out, result, first, saves):
    """Everything that a run which was stopped has made is there, and nobody else's."""
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [event["step"] for event in events if event["event"] == "step"]
    end = events[-1]
    check.that(len({event["run_id"] for event in events}) == 1, f"{name}: one run wrote metrics.jsonl", result)
    check.that(steps == list(range(first, first + len(steps))) and end["event"] == "run_end" and end["train_steps"] == len(steps),
               f"{name}: every step is in metrics.jsonl, and its end: {steps[:3]} to {steps[-3:]}", result)
    check.that(len((out / "results.csv").read_text().splitlines()) == 2, f"{name}: one row in results.csv", result)
    check.that(json.loads((out / "config.json").read_text()) == events[0]["config"], f"{name}: config.json is its own", result)
    if saves:
        found = launch("tessera-checkpoint", ["verify", str(out / f"checkpoint-{steps[-1]}")])
        check.that(found.code == 0, f"{name}: the checkpoint of its last step is whole", found)
    return end


def race(index):
    overwrites, saves = index % 2 == 1, draw.random() < 0.5
    out = folder / f"race-{index}"
    flags = [*RANDOM, *FOREVER, *(["--save_strategy", "steps", "--save_steps", "20", "--save_total_limit", "2"] if saves else []),
             *(["--overwrite_output_dir"] if overwrites else [])]
    if overwrites and draw.random() < 0.5:
        launch(SQUAD, [*RANDOM, "--max_steps", "2", "--save_strategy", "steps", "--save_final", "false", "--output_dir", str(out)])
    name = f"race {index}, {'with' if overwrites else 'without'} --overwrite_output_dir, {'with' if saves else 'without'} checkpoints"
    runs = [Run(out, *flags)]
    time.sleep(draw.choice([0, draw.random() * 0.05, draw.random() * 0.6]))
    runs.append(Run(out, *flags, *(["--ranks", "2"] if draw.random() < 0.3 else []), ranks=1))
    wait_for(lambda: any(run.ended() for run in runs), f"{name}: the refusal")
    loser = runs[0] if runs[0].ended() else runs[1]
    winner = runs[1 - runs.index(loser)]
    refused = loser.wait()
    said = [line for line in refused.text.splitlines() if line.startswith("E ")]
    locked = refused.code == 4 and len(said) == 1 and "another job writes here (" in said[0]  # its process and host, once it has written them
    held = refused.code == 2 and len(said) == 1 and "already holds a run" in said[0] and not overwrites
    check.that(locked or held, f"{name}: one is refused, with one message", refused)
    if draw.random() < 0.3:
        several = Run(out, *flags, "--strategy", "ddp", ranks=2).wait()
        check.that(several.code == (4 if overwrites else 2), f"{name}: several ranks are all refused", several)
    wait_for(lambda: winner.step() > 0 or winner.ended(), f"{name}: the other begins")
    before = winner.step()
    lost = out / "metrics.jsonl"
    wait_for(lambda: winner.step() >= before + 3 or winner.ended() or not lost.exists(), f"{name}: the other goes on")
    winner.send(signal.SIGINT)
    ended = winner.wait()
    check.that(ended.code == 130, f"{name}: the other was not disturbed", ended)
    require_whole(name, out, ended, 1, saves)
    shutil.rmtree(out)
    return "exit 4" if locked else "exit 2"


def held():
    """A run that trains and saves keeps every file while --overwrite_output_dir is refused."""
    out = folder / "held"
    flags = [*RANDOM, *FOREVER, "--save_strategy", "steps", "--save_steps", "20", "--overwrite_output_dir"]
    run = Run(out, *flags)

    def files():
        kept = ["metrics.jsonl", "config.json", "resources.csv", "checkpoint.lock", "checkpoint-20/manifest.json"]
        return {name: (out / name).stat().st_ino if (out / name).exists() else None for name in kept}

    # Checkpoints are written beside the training: its step may come first.
    wait_for(lambda: None not in files().values() or run.ended(), "the run trains and saves")
    before = files()
    check.that(None not in before.values(), f"the run has written its files: {before}")
    for ranks in (1, 2):
        refused = Run(out, *flags, *(["--strategy", "ddp"] if ranks == 2 else []), ranks=ranks).wait()
        check.that(refused.code == 4 and "another job writes here (" in refused.text, f"{ranks} rank(s) are refused while a run is alive", refused)
        check.that(files() == before, f"a refused --overwrite_output_dir of {ranks} rank(s) touches nothing: {before}, then {files()}", refused)
    run.send(signal.SIGINT)
    ended = run.wait()
    check.that(ended.code == 130, "the run was not disturbed", ended)
    require_whole("a run that others would overwrite", out, ended, 1, True)
    shutil.rmtree(out)


def interrupts(count):
    """Ctrl-C at random moments: what was made is there, and the run that goes on ends as the one that nobody disturbed."""
    outcomes, total = {}, 150
    layouts = [["--strategy", "single"], ["--ranks", "2", "--strategy", "zero2"], ["--strategy", "zero3"]]
    saving = ["--save_strategy", "steps", "--save_steps", "25", "--max_steps", str(total)]
    whole = {}
    for index in range(count):
        kind = index % len(layouts)
        ranks = 2 if kind == 2 else 1
        flags = [*RANDOM, *saving, *layouts[kind]]
        if kind not in whole:
            begin = time.monotonic()
            done = Run(folder / f"whole-{kind}", *flags, ranks=ranks).wait()
            events = read_events(check, folder / f"whole-{kind}")
            check.that(done.code == 0 and done.text.count("done: ") == 1, "a run that nobody disturbs", done)
            whole[kind] = time.monotonic() - begin, events[-1]["param_hash_final"]
        seconds, digest = whole[kind]
        out, name = folder / f"interrupt-{index}", f"Ctrl-C {index}, {' '.join(layouts[kind])}"
        run = Run(out, *flags, ranks=ranks)
        time.sleep(draw.random() * seconds)
        for rank in run.ranks:  # as a terminal does
            rank.send_signal(signal.SIGINT)
        result = run.wait()
        if result.code == 130:
            end = require_whole(name, out, result, 1, True)
            check.that(end["exit_code"] == 130 and "done: " not in result.text and "stopped by Ctrl-C after step" in result.text,
                       f"{name}: says that it was stopped", result)
        else:  # before it trained, or after its last step
            codes = result.code if isinstance(result.code, list) else [result.code]
            check.that(result.code == 0 or -signal.SIGINT in codes, f"{name}: exit codes {result.code}", result)
        outcomes[str(result.code)] = outcomes.get(str(result.code), 0) + 1
        if result.code != 0:
            again = Run(out, *flags, "--resume_from_checkpoint", "auto", ranks=ranks).wait()
            check.that(again.code == 0, f"{name}: goes on", again)
        check.that(read_events(check, out)[-1]["param_hash_final"] == digest, f"{name}: ends with the weights of the undisturbed run", result)
        shutil.rmtree(out)
    return outcomes


squad = ["--model_config", "bloom-tiny", "--tokenizer", str(DATA / "tokenizer"), "--max_seq_length", "64", "--train_file", str(DATA / "squad_sample.json"),
         "--train_slice", "0:16", "--max_steps", "4", "--report_to", "jsonl,csv,tensorboard", "--save_strategy", "steps", "--save_steps", "2"]
classes = ["--model_config", "bloom-tiny", "--tokenizer", str(DATA / "tokenizer"), "--max_seq_length", "32", "--train_file",
           str(DATA / "classification_train.csv"), "--validation_file", str(DATA / "classification_heldout.csv"), "--train_slice", "0:8",
           "--validation_slice", "0:8", "--max_steps", "1"]
# program, arguments, part of the path, calls that go well before the first that fails
KINDS = [(SQUAD, squad, "/out/checkpoint.lock", 0), (SQUAD, squad, "/out/metrics.jsonl", 0),
         (SQUAD, squad, "rank-0.safetensors", 1), (SQUAD, squad, "/out/final.tessera.tmp", 3),
         (CLASSIFICATION, classes, "/out/predictions.csv", 0)]
MORE_KINDS = [(SQUAD, squad, "/out", 0), (SQUAD, squad, "/out/results.csv", 0), (SQUAD, squad, "/out/resources.csv", 0),
              (SQUAD, squad, "/out/config.json", 0), (SQUAD, squad, "/out/tensorboard", 0), (SQUAD, squad, "tfevents", 0),
              (SQUAD, squad, "/out/checkpoint-2", 0), (SQUAD, squad, "rank-0.safetensors", 0), (SQUAD, squad, "manifest.json", 0), (SQUAD, squad, "/out/latest", 0),
              (SQUAD, squad, "/out/final", 0), (SQUAD, squad, "final.tessera.tmp/shard-0", 0), (SQUAD, squad, "final.tessera.tmp/shard-0", 1),
              (SQUAD, squad, "final.tessera.tmp/config.json", 0), (SQUAD, squad, "final.tessera.tmp/tokenizer.json", 0),
              (SQUAD, squad, "final.tessera.tmp/tokenizer_config.json", 0), (SQUAD, [*squad, "--save_async", "false"], "rank-0.safetensors", 1),
              (CLASSIFICATION, classes, "/out/scores.json", 0), (SQUAD, [*squad, "--ranks", "2", "--strategy", "zero2"], "rank-1.safetensors", 0)]
# Logs that fail while a run trains: calls that go well before the first that fails.
LOGS = [("/out/metrics.jsonl", 5), ("/out/results.csv", 2), ("/out/resources.csv", 3), ("tfevents", 4)]


def failing(program, arguments, path, after, error):
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    result = launch(program, [*arguments, "--output_dir", str(out)], environment={
        "LD_PRELOAD": str(BIN / "failing_files.so"), "TESSERA_FAIL_PATH": path, "TESSERA_FAIL_ERRNO": str(error), "TESSERA_FAIL_AFTER": str(after)})
    name = f"{os.strerror(error)} at {path}, call {after}"
    said = [line for line in result.text.splitlines() if line.startswith("E ")]
    check.that(result.code == 4 and "done" not in result.text, f"{name}: exit 4, and nothing is said to be done", result)
    check.that(len(said) == 1 and os.strerror(error) in said[0] and path.split("/")[-1] in said[0], f"{name}: file and reason are said: {said}", result)
    final = out / "final"
    check.that(not final.exists() or (final / "model.safetensors").exists(), f"{name}: no half of final/", result)


def full_at(path, after, arguments, out):
    return launch(SQUAD, [*arguments, "--output_dir", str(out)], environment={
        "LD_PRELOAD": str(BIN / "failing_files.so"), "TESSERA_FAIL_PATH": path, "TESSERA_FAIL_ERRNO": str(errno.ENOSPC), "TESSERA_FAIL_AFTER": str(after)})


def log_is_lost(path, after, arguments, result):
    """Training goes on without it: one warning, one number at the end, and all else is there."""
    name, out = f"no space at {path}, call {after}", folder / "out"
    lost = re.findall(r"W .* (\d+) records? (?:was|were) not logged: (.*)", result.text)
    check.that(result.code == 0 and result.text.count("done: ") == 1 and (out / "final/model.safetensors").exists(), f"{name}: training goes on", result)
    check.that(len(lost) == 1 and int(lost[0][0]) > 0 and path.split("/")[-1] in lost[0][1] and os.strerror(errno.ENOSPC) in lost[0][1] and
               result.text.count("training goes on, and what is not logged is counted") == 1, f"{name}: said once, and counted: {lost}", result)
    if "--save_steps" in arguments:
        found = launch("tessera-checkpoint", ["verify", str(out / "checkpoint-4")])
        check.that(found.code == 0, f"{name}: checkpoints are written", found)


def every_write(name):
    """Each write of a log in turn is the first that fails: none before training may, and none afterwards ends it."""
    out, after, trained = folder / "out", 0, 0
    while after < 40:
        shutil.rmtree(out, ignore_errors=True)
        arguments = [*RANDOM, "--max_steps", "1"]
        result = full_at(f"/out/{name}", after, arguments, out)
        if result.code == 0 and "not logged" not in result.text:
            break
        if "step 1/1" in result.text:
            trained += 1
            log_is_lost(f"/out/{name}", after, arguments, result)
        else:
            check.that(result.code == 4 and "done" not in result.text, f"no space at {name}, call {after}: exit 4, and nothing is said to be done", result)
        after += 1
    check.that(after > 1 and trained > 0 and result.code == 0 and result.text.count("done: ") == 1, f"{name}: the last of {after} writes came after training", result)
    return after


def older_final():
    """A run that goes on keeps final/ of before until the new one is complete."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    check.that(launch(SQUAD, [*squad, "--output_dir", str(out)]).code == 0, "a run that ends")
    before = (out / "final/model.safetensors").read_bytes()
    further = [*squad, "--max_steps", "6", "--resume_from_checkpoint", "auto"]
    result = full_at("final.tessera.tmp", 3, further, out)
    check.that(result.code == 4 and (out / "final/model.safetensors").read_bytes() == before and (out / "final/config.json").exists() and
               not (out / "final.tessera.tmp").exists(), "final/ of before stays where the new one cannot be written", result)
    result = launch(SQUAD, [*further, "--output_dir", str(out)])
    check.that(result.code == 0 and (out / "final/model.safetensors").read_bytes() != before and not (out / "final.tessera.tmp").exists(),
               "and is replaced by it", result)


def early():
    """Before data are looked at, which takes long."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    nowhere = [*squad, "--train_file", str(folder / "nowhere.json"), "--output_dir"]
    nowhere.remove("--train_file")
    nowhere.remove(str(DATA / "squad_sample.json"))
    result = launch(SQUAD, [*nowhere, str(out)], environment={
        "LD_PRELOAD": str(BIN / "failing_files.so"), "TESSERA_FAIL_PATH": "/out/", "TESSERA_FAIL_ERRNO": str(errno.ENOSPC)})
    check.that(result.code == 4 and os.strerror(errno.ENOSPC) in result.text and not out.exists(), "a full disk is seen before the data", result)
    result = launch(SQUAD, [*nowhere, str(out / "deeper")])
    check.that(result.code != 0 and "nowhere.json" in result.text and not out.exists(), "data that cannot be read leave nothing behind", result)
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        print("skipped: a folder of another user (needs root and setpriv)")
        return
    out.mkdir(mode=0o755)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if subprocess.run([*nobody, str(BIN / SQUAD), "--help"], capture_output=True).returncode != 0:
        print("skipped: a folder of another user (nobody may not run the programs here)")
        return
    folder.chmod(0o755)
    for place in (out, out / "new"):
        done = subprocess.run([*nobody, str(BIN / SQUAD), *nowhere, str(place)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        result = Result(done.returncode, done.stdout, f"as nobody: {SQUAD} --output_dir {place}")
        check.that(result.code == 4 and "Permission denied" in result.text and str(place) in result.text, "a folder of another user", result)


def no_numbers():
    """Numbers that are none: the run ends, or what it keeps can be gone on from."""
    out = folder / "no-number"
    for strategy, ranks in (("single", "1"), ("zero3", "2"), ("fsdp", "2")):
        shutil.rmtree(out, ignore_errors=True)
        wild = [a if a != "1e-4" else "1000" for a in RANDOM]
        result = launch(SQUAD, [*wild, "--max_steps", "8", "--strategy", strategy, "--ranks", ranks, "--output_dir", str(out)])
        events = read_events(check, out)
        check.that(result.code == 6 and "first non-finite tensor: " in result.text and "done" not in result.text and not (out / "final").exists(),
                   f"{strategy}: fp32 that overflows ends with exit 6 and without final/", result)
        check.that(events[-1]["exit_code"] == 6 and events[-1]["num_skipped_steps"] == 1 and events[-2]["kind"] == "numerics",
                   f"{strategy}: the step is the first and the last skipped one", result)
    result = launch(SQUAD, [*wild, "--max_steps", "8", "--max_nonfinite_steps", "7", "--output_dir", str(out), "--overwrite_output_dir"])
    check.that(result.code == 0 and (out / "final").exists(), "--max_nonfinite_steps lets more pass", result)
    # The first evaluation is no number, and is that of the first checkpoint.
    shutil.rmtree(out)
    ids = folder / "validation.jsonl"
    ids.write_text("".join(json.dumps({"input_ids": [5 + i, 6, 7], "labels": [5 + i, 6, 7]}) + "\n" for i in range(4)))
    best = [*[a if a != "1e-4" else "1e4" for a in RANDOM], "--dtype", "fp16", "--validation_ids", str(ids), "--eval_steps", "1", "--save_strategy", "steps",
            "--save_steps", "1", "--load_best_model_at_end", "--output_dir", str(out)]
    result = launch(SQUAD, [*best, "--max_steps", "2"])
    evals = [event["eval_loss"] for event in read_events(check, out) if event["event"] == "eval"]
    check.that(result.code == 0 and evals[:1] == [None], f"the first evaluation is no number: {evals}", result)
    state = json.loads((out / "checkpoint-2/manifest.json").read_text())
    check.that('"best"' not in json.dumps(state), "no best evaluation is saved", result)
    result = launch(SQUAD, [*best, "--max_steps", "4", "--resume_from_checkpoint", "auto"])
    check.that(result.code == 0, "its checkpoint can be gone on from", result)
    result = launch(SQUAD, [*best, "--max_steps", "3", "--resume_from_checkpoint", "auto"])
    check.that(result.code == 0 and "nothing is left to train: the checkpoint is at step 4, the run ends at step 3" in result.text and
               "nan" not in result.text.split("resumed from")[1].split("memory of")[0] and "done: no step was trained" in result.text,
               "going on beyond the end says so", result)


held()
refusals = {}
for index in range(RACES):
    outcome = race(index)
    refusals[outcome] = refusals.get(outcome, 0) + 1
print(f"{RACES} races: refused with {refusals}", flush=True)
print(f"{INTERRUPTS} times Ctrl-C: ended with {interrupts(INTERRUPTS)}", flush=True)
print(f"each write fails in turn: {[(name, every_write(name)) for name in ('metrics.jsonl', 'results.csv')]}", flush=True)
early()
older_final()
for path, after in LOGS:
    shutil.rmtree(folder / "out", ignore_errors=True)
    log_is_lost(path, after, squad, full_at(path, after, squad, folder / "out"))
no_numbers()
kinds = [*KINDS, *(MORE_KINDS if EVERY_KIND else [])]
for index, kind in enumerate(kinds):
    for error in (errno.ENOSPC, errno.EACCES) if EVERY_KIND else ((errno.ENOSPC, errno.EACCES)[index % 2],):
        failing(*kind, error)
print(f"{len(kinds)} kinds of writes that fail: exit 4", flush=True)
shutil.rmtree(folder)
check.finish()
