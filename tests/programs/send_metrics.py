# SPDX-License-Identifier: MIT
"""scripts/send_metrics.py, with packages of the services' names that note their calls.

Usage: send_metrics.py SOURCE_ROOT BIN_FOLDER
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from support import DATA, ROOT, Checker, launch, read_events

check = Checker()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_send_metrics_"))
run = folder / "run"
work = ["--model_config", "bloom-tiny", "--tokenizer", str(DATA / "tokenizer"), "--max_seq_length", "96", "--train_file", str(DATA / "squad_sample.json"),
        "--validation_file", str(DATA / "squad_sample.json"), "--validation_slice", "0:4", "--max_steps", "3", "--save_final", "false"]
result = launch("tessera-finetune-squad", [*work, "--output_dir", str(run)])
check.that(result.code == 0, "a run to send", result)
events = read_events(check, run)
steps = [event for event in events if event["event"] == "step"]
evaluation = next(event for event in events if event["event"] == "eval")

# The parts of each package that the script calls; every call is a line of calls.jsonl.
NOTE = """
import json, os
def note(*call):
    with open(os.environ["CALLS"], "a") as out:
        out.write(json.dumps(call) + "\\n")
"""
PACKAGES = {
    "wandb": NOTE + """
class Run:
    class summary:
        update = staticmethod(lambda values: note("summary", values))
    def log(self, values, step): note("log", step, values)
    def finish(self): note("finish")
def init(project, name, config, id, mode="online"):
    if os.environ.get("NO_KEY") and mode == "online":
        raise RuntimeError("no API key is configured")
    note("start", project, name, config)
    note("mode", mode, os.environ.get("WANDB_DIR"))
    return Run()
""",
    "mlflow": NOTE + """
import contextlib
def set_experiment(project): note("project", project)
@contextlib.contextmanager
def start_run(run_name):
    note("start", None, run_name, None)
    yield
    note("finish")
def log_params(values):
    assert len(values) <= 100
    note("parameters", values)
def log_metrics(values, step=None): note("log" if step is not None else "summary", *([step] if step is not None else []), values)
def set_tag(key, value): note("tag", key, value)
""",
    "comet_ml": NOTE + """
class Experiment:
    def __init__(self, project_name): note("project", project_name)
    def set_name(self, name): note("start", None, name, None)
    def log_parameters(self, values): note("parameters", values)
    def log_metrics(self, values, step=None): note("log" if step is not None else "summary", *([step] if step is not None else []), values)
    def log_text(self, text): note("text", text)
    def end(self): note("finish")
""",
}


def with_packages(packages):
    """PYTHONPATH and the file that notes the calls."""
    path = folder / "packages"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for name in packages:
        (path / f"{name}.py").write_text(PACKAGES.get(name, name))
    calls = folder / "calls.jsonl"
    calls.write_text("")
    return path, calls


def send(arguments, packages=()):
    path, calls = with_packages(packages)
    # -S: packages that this host may have are not seen.
    done = subprocess.run([sys.executable, "-S", str(ROOT / "scripts/send_metrics.py"), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=60, env={**os.environ, "PYTHONPATH": str(path), "CALLS": str(calls)}, check=False)
    return done.returncode, done.stdout.decode(), [json.loads(line) for line in calls.read_text().splitlines()]


check.that(os.access(ROOT / "scripts/send_metrics.py", os.X_OK), "the script runs as docs/reference/metrics.md calls it")
for service, package in (("wandb", "wandb"), ("mlflow", "mlflow"), ("comet", "comet_ml")):
    code, text, calls = send(["--to", service, str(run), "--project", "p"], [package])
    check.that(code == 0 and calls[-1] == ["finish"], f"{service}: {text}")
    check.that(any(call[0] == "start" and call[2] == events[0]["exp"] for call in calls), f"{service}: the run has its name")
    logged = {}
    for call in calls:
        if call[0] == "log":
            logged.setdefault(call[1], {}).update(call[2])
    check.that([logged[step["step"]]["train/loss"] for step in steps] == [step["loss"] for step in steps], f"{service}: a loss a step")
    check.that(logged[evaluation["step"]]["eval/loss"] == evaluation["eval_loss"], f"{service}: evaluations: {logged}")
    check.that(not any("resource" in key for values in logged.values() for key in values), f"{service}: no samples unless asked for")
    totals = {key: value for call in calls if call[0] == "summary" for key, value in call[1].items()}
    check.that(totals["summary/train_runtime"] == events[-1]["train_runtime"], f"{service}: the summary")
    configuration = {key: value for call in calls if call[0] in ("parameters", "start") and isinstance(call[-1], dict) for key, value in call[-1].items()}
    check.that(str(configuration.get("config/max_steps")) == "3" and configuration.get("strategy") == "single", f"{service}: the configuration")
    code, text, calls = send(["--to", service, str(run)])
    check.that(code == 1 and f"needs the Python package {package}" in text and not calls and "Traceback" not in text, f"{service} without its package: {text}")
code, text, calls = send(["--to", "wandb", str(run), "--resources"], ["wandb"])
check.that(any(key.startswith("resource/") for call in calls if call[0] == "log" for key in call[2]), "samples when asked for")
code, text, calls = send(["--to", "wandb", str(run), str(folder / "none")], ["wandb"])
check.that(code == 1 and "none/metrics.jsonl" in text and not calls and "Traceback" not in text, f"a missing run stops all of them: {text}")
with (run / "metrics.jsonl").open("a") as out:
    out.write('{"event": "st')
code, text, calls = send(["--to", "wandb", str(run)], ["wandb"])
check.that(code == 0, f"a torn last line is left out: {text}")
with (run / "metrics.jsonl").open("a") as out:
    out.write("\n")
code, text, calls = send(["--to", "wandb", str(run)], ["wandb"])
check.that(code == 1 and f":{len(events) + 1}: is no JSON" in text, f"a broken line is named: {text}")


# --- --report_to: sent beside the run, which never ends for it
def run_with(name, report_to, packages=(), python=None, **environment):
    path, calls = with_packages(packages)
    own = folder / "python3"
    own.write_text(python or f"#!/bin/sh\nexec {sys.executable} -S \"$@\"\n")  # packages that this host may have are not seen
    own.chmod(0o755)
    out = folder / name
    result = launch("tessera-finetune-squad", [*work, "--report_to", report_to, "--output_dir", str(out)],
                    environment={"PYTHONPATH": str(path), "CALLS": str(calls), "TESSERA_PYTHON": str(own), **environment})
    check.that(result.code == 0 and "done: 3 steps" in result.text, f"{name}: the run ends well", result)
    return result, [json.loads(line) for line in calls.read_text().splitlines()], read_events(check, out)


result, calls, events = run_with("both", "jsonl,csv,wandb,mlflow", ["wandb", "mlflow"])
check.that(calls.count(["finish"]) == 2 and "metrics were sent to wandb" in result.text and "metrics were sent to mlflow" in result.text, f"both are sent: {calls}", result)
losses = [event["loss"] for event in events if event["event"] == "step"]
for step, loss in enumerate(losses, 1):
    points = [call[2] for call in calls if call[0] == "log" and call[1] == step and call[2].get("train/loss") == loss]
    check.that(len(points) == 2, f"step {step} is logged by both: {points}")
check.that(sum(call[0] == "start" and call[2] == events[0]["exp"] for call in calls) == 2, "the runs have the run's name")
check.that(["mode", "online", str(folder / "both")] in calls, f"wandb's files lie with the run: {calls[:3]}")
check.that(any("summary/train_runtime" in call[-1] for call in calls if call[0] == "summary"), "the summary")
result, calls, _ = run_with("again", "wandb", ["wandb"], NO_KEY="1")
check.that(["mode", "offline", str(folder / "again")] in calls and calls[-1] == ["finish"], f"without a key wandb is offline: {calls}", result)
result, calls, _ = run_with("none", "jsonl,wandb,mlflow")
said = [line for line in result.text.splitlines() if "--report_to" in line]
check.that(not calls and len(said) == 2 and all(f"has no package {name} (pip install {name})" in line for name, line in zip(("wandb", "mlflow"), said)),
           f"a package that is missing is said in one sentence: {said}", result)
result, calls, _ = run_with("no python", "jsonl,wandb", TESSERA_PYTHON="/no/such/python")
check.that(sum("--report_to wandb" in line for line in result.text.splitlines()) == 1, "and so is Python", result)
result, calls, _ = run_with("broken", "jsonl,wandb", ["wandb"], CALLS="/no/such/folder/calls")
check.that("the package ended with status 1" in result.text and "FileNotFoundError" in result.text, "a package that fails", result)
result = launch("tessera-finetune-squad", [*work, "--report_to", "csv,wandb", "--output_dir", str(folder / "refused")])
check.that(result.code == 2 and "add jsonl" in result.text and not (folder / "refused").exists(), "what is sent without metrics.jsonl is refused", result)
shutil.rmtree(folder)
check.finish()
