# SPDX-License-Identifier: MIT
"""Training in which each rank in turn is stopped in each phase: all others name it and end with 5, and it ends when it goes on. What
was recorded until then is what a run that is left alone records.

  stopped_training.py SOURCE BIN_FOLDER [--backend tcp] [--phases attach,step,...] [--ranks N] [--limit S]
"""
import json
import pathlib
import re
import signal
import tempfile
import time

from jobs import PATIENCE_S, command_line, ended, fail, free_port, job

arguments = command_line("source", "binaries", backend="tcp", phases="", ranks=3, limit=3.0)
MODEL = {"model_type": "gpt2", "vocab_size": 2048, "n_embd": 128, "n_layer": 8, "n_head": 4, "n_positions": 128, "activation_function": "gelu_new",
         "architectures": ["GPT2LMHeadModel"]}


def events(output):
    path = output / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["event"] for line in lines if line.endswith("}")]


def numbers(output):
    """The losses of steps and evaluations in order."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()] if (output / "metrics.jsonl").exists() else []
    return [line.get("loss", line.get("eval_loss")) for line in lines if line["event"] in ("step", "eval")]


# By what is seen from outside when the phase begins. The run makes two steps, evaluates, saves, and so on; it exports at its end.
PHASES = {
    "attach": lambda output: (output / "config.json").exists(),
    "step": lambda output: events(output).count("step") >= 1,
    "evaluation": lambda output: events(output).count("step") >= 2,
    "save": lambda output: any(output.glob("checkpoint-*.tmp")),
    "export": lambda output: any(output.glob("final*")),
}


def command(output):
    data = str(pathlib.Path(arguments.source, "examples/data/squad_sample.json"))
    return [str(pathlib.Path(arguments.binaries, "tessera-finetune-squad")), "--model_config", str(output.parent / "model.json"), "--tokenizer",
            str(pathlib.Path(arguments.source, "examples/data/tokenizer")), "--train_file", data, "--validation_file", data, "--max_seq_length", "96",
            "--per_device_train_batch_size", "2", "--max_steps", "4", "--eval_strategy", "steps", "--eval_steps", "2", "--save_strategy", "steps",
            "--save_steps", "2", "--save_async", "false", "--logging_steps", "1", "--report_to", "jsonl", "--cache_dir", "none", "--backend", arguments.backend,
            "--strategy", "zero3", "--output_dir", str(output)]


def left_alone(output):
    with job(command(output), arguments.ranks, free_port(), TESSERA_CACHE_DIR="none") as ranks:
        texts = [ended(rank, "nobody is stopped") for rank in ranks]
        if any(rank.returncode for rank in ranks):
            fail("nobody is stopped, and the run fails", "\n".join(texts))
    return numbers(output)


def stop(phase, victim, output, expected):
    with job(command(output), arguments.ranks, free_port(), TESSERA_HEARTBEAT_TIMEOUT_S=str(arguments.limit), TESSERA_CACHE_DIR="none") as ranks:
        deadline = time.monotonic() + PATIENCE_S
        while not PHASES[phase](output):
            if time.monotonic() > deadline or all(rank.poll() is not None for rank in ranks):
                fail(f"phase {phase} was not reached", "".join(ended(rank, phase) for rank in ranks if rank.poll() is not None))
            time.sleep(0.002)
        ranks[victim].send_signal(signal.SIGSTOP)
        texts = [ended(rank, f"{phase}: rank {victim} is stopped") for rank in ranks if rank is not ranks[victim]]
        codes = [rank.returncode for rank in ranks if rank is not ranks[victim]]
        ranks[victim].send_signal(signal.SIGCONT)
        ended(ranks[victim], f"{phase}: rank {victim} goes on")
        recorded = numbers(output)
        if len(recorded) > len(expected) or any(not abs(a - b) <= 1e-4 * abs(b) for a, b in zip(recorded, expected)):
            fail(f"{phase}: rank {victim} is stopped: losses {recorded} are recorded, and they are {expected}", "\n".join(texts))
        if phase == "export" and not any(codes):
            return "the run was over"
        named = [re.search(rf"rank {victim} \(host [^)]*\) has been silent since [^\n]*\(call \d+ of [^)]*\), step \d+, \w+", text) for text in texts]
        if set(codes) != {5} or not all(named):
            fail(f"{phase}: rank {victim} is stopped: the others end with {codes}", "\n".join(texts))
        if victim != 0 and len({match.group() for match in named}) != 1:
            fail(f"{phase}: rank {victim} is stopped: the others say different things", "\n".join(texts))
        return "named"


chosen = [phase for phase in arguments.phases.split(",") if phase] or list(PHASES)
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "model.json").write_text(json.dumps(MODEL))
    expected = left_alone(pathlib.Path(folder, "alone"))
    for phase in chosen:
        results = [stop(phase, victim, pathlib.Path(folder, f"{phase}-{victim}"), expected) for victim in range(arguments.ranks)]
        if "named" not in results:
            fail(f"{phase}: every run was over before its rank was stopped")
        print(f"{phase}: ranks stopped in turn: {results}", flush=True)
