# SPDX-License-Identifier: MIT
"""The kill test: SIGKILL for a random rank of a training program at random steps and inside saves, resumed with `auto` each time. The final
weights, the moments of the last checkpoint and the loss of every step must be those of the run that nobody disturbed, bit for bit.

  kill.py SOURCE BIN_FOLDER [--kills N] [--only NAME,...] [--seed N] [--log FILE]

--kills: of each configuration (2), at most three of them in one run. --log: a line of JSON for each run; runs that it already has at this
seed are not repeated.
"""
import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "programs"))
from exported_model import with_vocabulary  # noqa: E402
from start_ranks import free_port  # noqa: E402

STEPS, SAVE_STEPS, PATIENCE_S = 14, 3, 300
# Dropout on: masks are drawn again after a resume.
MODEL = {"model_type": "gpt2", "vocab_size": 2048, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 128, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
         "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"]}
# 1.2 million parameters in its layers: one master in 131,072 is the middle of two values of bf16, which a restore may move.
LARGE_MODEL = {**MODEL, "n_embd": 128, "n_layer": 6}
LARGE = {"single", "muon", "zero3-muon"}
PROGRAM = "olmoe"  # of the configuration "program": stacked experts, and a balance loss between blocks
TOKENS = 2000  # of examples/data/tokenizer
CONFIGURATIONS = {  # ranks, flags; saves are asynchronous where nothing else is said
    "single": (1, "--dtype bf16 --save_async false"),
    "muon": (1, "--strategy single --optim muon --optim_args ns_steps=1 --dtype bf16 --save_async false"),
    "zero3-muon": (2, "--strategy zero3 --optim muon --optim_args ns_steps=1 --dtype bf16"),
    "ddp": (2, "--dtype fp32 --gradient_accumulation_steps 2"),
    "zero1": (2, "--dtype bf16 --save_async false"),
    "zero2": (2, "--dtype fp16 --gradient_accumulation_steps 2"),
    "zero3": (2, "--dtype bf16"),
    "fsdp": (2, "--dtype fp32 --gradient_checkpointing --save_async false"),
    "zero2-offload": (2, "--strategy zero2 --offload optimizer --dtype bf16"),
    "zero3-offload": (2, "--strategy zero3 --offload optimizer+params --dtype bf16"),
    "pipeline": (2, "--strategy ddp --pipeline_parallel 2 --gradient_accumulation_steps 4 --dtype bf16"),
    "tensor": (2, "--strategy ddp --tensor_parallel 2 --dtype bf16 --save_async false"),
    "program": (2, "--strategy zero3 --dtype fp32 --gradient_accumulation_steps 2"),
    "three-axes": (8, "--strategy zero1 --pipeline_parallel 2 --tensor_parallel 2 --gradient_accumulation_steps 2 --packing --dtype fp32"),
}


class Job:
    """One process a rank, connected over TCP."""

    def __init__(self, ranks, command, log):
        port = free_port()
        self.log = log
        with open(log, "ab") as output:
            self.ranks = [subprocess.Popen(command, stdout=output, stderr=output, env={
                **os.environ, "RANK": str(r), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(r), "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}) for r in range(ranks)]

    def running(self):
        return any(rank.poll() is None for rank in self.ranks)

    def wait(self):
        deadline = time.monotonic() + PATIENCE_S
        for rank in self.ranks:
            try:
                rank.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                for other in self.ranks:
                    other.kill()
                raise SystemExit(f"a rank did not end within {PATIENCE_S} s; {self.tail()}")
        return [rank.returncode for rank in self.ranks]

    def tail(self):
        return "its log ends with\n" + pathlib.Path(self.log).read_text(errors="replace")[-3000:]


def command_of(source, binaries, folder, name, output):
    ranks, flags = CONFIGURATIONS[name]
    if "--strategy" not in flags:
        flags += f" --strategy {name}"
    model = "exported" if name == "program" else "large.json" if name in LARGE else "model.json"
    return [os.path.join(binaries, "tessera-finetune-squad"), "--model_config", os.path.join(folder, model),
            "--tokenizer", os.path.join(source, "examples/data/tokenizer"), "--train_file", os.path.join(source, "examples/data/squad_sample.json"),
            "--max_seq_length", "96", "--per_device_train_batch_size", "2", "--max_steps", str(STEPS), "--learning_rate", "1e-3",
            "--save_strategy", "steps", "--save_steps", str(SAVE_STEPS), "--save_total_limit", "2", "--resume_from_checkpoint", "auto",
            "--logging_steps", "1", "--report_to", "jsonl", "--cache_dir", "none", "--backend", "tcp", "--output_dir", output, *flags.split()]


def steps_of(output):
    """Loss and norm by step as often as they were reported, written exactly."""
    losses = {}
    try:
        lines = pathlib.Path(output, "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return losses
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line of a killed rank
        if event["event"] == "step":
            losses.setdefault(event["step"], set()).add((event["loss"], event["grad_norm"], event["learning_rate"]))
    return losses


def size_of(output):
    path = pathlib.Path(output, "metrics.jsonl")
    return path.stat().st_size if path.exists() else 0


def files_of(output):
    """What must be equal: the exported weights and the pieces of the last checkpoint (masters, moments)."""
    folder = pathlib.Path(output)
    paths = sorted(folder.glob("final/*.safetensors")) + sorted(folder.glob(f"checkpoint-{STEPS}/*.safetensors"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def saving(output, since):
    """The saves under way, without what a killed one left behind."""
    found = set()
    for path in pathlib.Path(output).glob("checkpoint-*.tmp"):
        try:
            if path.stat().st_mtime > since:
                found.add(path.name)
        except FileNotFoundError:
            pass  # committed meanwhile
    return found


def has_checkpoint(output):
    return any(not path.name.endswith(".tmp") for path in pathlib.Path(output).glob("checkpoint-*"))


def disturb(job, output, draw, resumes):
    """Kills a random rank at a random step or inside a save; says where, or nothing when the run was over before. resumes: once there is a
    checkpoint to go on from."""
    since, inside, delay_s = time.time(), draw.random() < 0.5, draw.random() * 0.02
    before, written = min(STEPS - 1, max(steps_of(output), default=0)), size_of(output)
    step, seen, victim = draw.randrange(before + 1, STEPS + 1), set(), draw.choice(job.ranks)
    ready = False
    while job.running() and not ready:
        if inside:
            new = saving(output, since) - seen
            seen |= new
            ready = any(draw.random() < 0.4 for _ in new)
        else:
            ready = size_of(output) > written and max(steps_of(output), default=0) >= step
        ready = ready and (not resumes or has_checkpoint(output))
        time.sleep(0.001)
    if inside:
        delay_s /= 4
    time.sleep(delay_s)
    last, was_saving = max(steps_of(output), default=0), bool(saving(output, since))
    if victim.poll() is not None:
        return None
    victim.send_signal(signal.SIGKILL)
    return {"rank": job.ranks.index(victim), "step": last, "inside_save": was_saving}


def run_to_end(ranks, command, log):
    codes = (job := Job(ranks, command, log)).wait()
    if any(codes):
        raise SystemExit(f"exit codes {codes}: {' '.join(command)}\n{job.tail()}")


def one_run(arguments, folder, name, reference, seed, kills):
    draw = random.Random(f"{name} {seed}")
    output = os.path.join(folder, f"{name}-{seed}")
    command = command_of(arguments.source, arguments.binaries, folder, name, output)
    done = []
    for kill in range(kills):
        job = Job(CONFIGURATIONS[name][0], command, output + ".log")
        where = disturb(job, output, draw, resumes=kill + 1 == kills)
        codes = job.wait()
        if where is None:
            if any(codes):
                raise SystemExit(f"exit codes {codes} although nobody was killed\n{job.tail()}")
            break
        strange = [code for code in codes if code not in (0, 5, -signal.SIGKILL)]
        if strange:
            raise SystemExit(f"{name}: after a kill at {where} ranks ended with {codes}\n{job.tail()}")
        done.append(where)
    run_to_end(CONFIGURATIONS[name][0], command, output + ".log")
    losses, files = steps_of(output), files_of(output)
    wrong = [f"step {step}: {sorted(values)} instead of {sorted(reference['losses'][step])}" for step, values in sorted(losses.items())
             if values != reference["losses"][step]]
    if set(losses) != set(reference["losses"]):
        wrong.append(f"steps {sorted(losses)}")
    wrong += [f"{path} differs" for path in reference["files"] if files.get(path) != reference["files"][path]]
    wrong += [f"{path} is too much" for path in files if path not in reference["files"]]
    if wrong:
        raise SystemExit(f"{name}, seed {seed}, killed at {done}: lost: " + "; ".join(wrong) + f"\n{pathlib.Path(output + '.log').read_text()[-2000:]}")
    return done


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("binaries")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", default="")
    arguments = parser.parse_args()
    finished = {}
    if arguments.log and os.path.exists(arguments.log):
        for line in open(arguments.log):
            entry = json.loads(line)
            finished[entry["name"], entry["seed"]] = entry["kills"]
    total = inside = 0
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "model.json").write_text(json.dumps(MODEL))
        pathlib.Path(folder, "large.json").write_text(json.dumps(LARGE_MODEL))
        with_vocabulary(PROGRAM, TOKENS, os.path.join(folder, "exported"))
        for name in arguments.only.split(",") if arguments.only else CONFIGURATIONS:
            begin, killed, seed, reference = time.monotonic(), [], arguments.seed, None
            while len(killed) < arguments.kills:
                if (name, seed) in finished:
                    killed += finished[name, seed]
                    seed += 1
                    continue
                if reference is None:
                    output = os.path.join(folder, name)
                    run_to_end(CONFIGURATIONS[name][0], command_of(arguments.source, arguments.binaries, folder, name, output), output + ".log")
                    reference = {"losses": steps_of(output), "files": files_of(output)}
                    if sorted(reference["losses"]) != list(range(1, STEPS + 1)) or not any("checkpoint" in path for path in reference["files"]):
                        raise SystemExit(f"{name}: the undisturbed run is not whole: {sorted(reference['losses'])}, {sorted(reference['files'])}")
                done = one_run(arguments, folder, name, reference, seed, min(3, arguments.kills - len(killed)))
                killed += done
                if arguments.log:
                    with open(arguments.log, "a") as log:
                        log.write(json.dumps({"name": name, "seed": seed, "kills": done}) + "\n")
                seed += 1
            total += len(killed)
            inside += sum(kill["inside_save"] for kill in killed)
            print(f"{name}: {len(killed)} kills at steps {[kill['step'] for kill in killed]}, "
                  f"{sum(kill['inside_save'] for kill in killed)} inside saves, ranks {[kill['rank'] for kill in killed]}: 0 lost, "
                  f"{time.monotonic() - begin:.0f} s", flush=True)
    print(f"{total} kills, {inside} inside saves, 0 lost")


if __name__ == "__main__":
    main()
