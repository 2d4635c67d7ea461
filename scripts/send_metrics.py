#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sends the metrics.jsonl of runs to Weights & Biases, MLflow or Comet.

    send_metrics.py --to wandb|mlflow|comet RUN_DIR... [--project NAME] [--resources]

RUN_DIR is an --output_dir of a tessera program. Each becomes a run of that service under its experiment's name, with its
configuration, a point a step for every number (train/..., eval/..., with --resources also resource/...), its anomalies as
text and its summary. The service's own Python package does the sending: wandb, mlflow or comet_ml, with the credentials
and addresses that it finds in its usual environment variables and files (WANDB_MODE=offline and a local
MLFLOW_TRACKING_URI work). Nothing else is needed.
"""
import argparse
import importlib
import json
import math
import pathlib
import sys

COMMON = {"schema", "event", "time_unix_s", "elapsed_s", "run_id", "rank", "step", "gpu"}


def read_events(directory):
    """Events of the run; a line torn by a kill is left out at the end, and an error anywhere else."""
    path = pathlib.Path(directory) / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}; name the --output_dir of a run that reports to jsonl")
    events = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            sys.exit(f"{path}:{number}: is no JSON: {error}")
    if not events or events[0].get("event") != "run_start":
        sys.exit(f"{path}: does not begin with run_start; is it written by a tessera program?")
    return events


def numbers(event, prefix):
    """The finite numbers of an event, as prefix/name."""
    return {f"{prefix}/{key.removeprefix('eval_')}": value for key, value in event.items()
            if key not in COMMON and isinstance(value, (int, float)) and math.isfinite(value)}


def settings(start):
    """What the run was, flat: the facts of run_start, and its flags as config/name."""
    flat = {key: value for key, value in start.items() if isinstance(value, (str, int, float, bool))}
    flat["argv"] = " ".join(start["argv"])
    for name, setting in start["config"].items():
        flat[f"config/{name}"] = setting["value"]
    return flat


def points(events, resources):
    """(step, numbers) in the order of the run; resources lie at the step before them."""
    step = 0
    for event in events:
        kind = event["event"]
        if kind in ("step", "eval"):
            step = event["step"]
            yield step, numbers(event, "train" if kind == "step" else "eval")
        elif kind == "resource" and resources:
            gpu = "" if event["gpu"] is None else f"/gpu{event['gpu']}"
            yield step, numbers(event, "resource" + gpu)


def anomalies(events):
    return [f"{event['kind']}: {event['detail']}" for event in events if event["event"] == "anomaly"]


def summary(events):
    """Numbers of run_end; {} for a run that did not end."""
    ends = [event for event in events if event["event"] == "run_end"]
    return numbers(ends[-1], "summary") if ends else {}


def send_to_wandb(wandb, project, events, resources):
    start = events[0]
    run = wandb.init(project=project, name=start["exp"], config=settings(start), id=start["run_id"])
    # Several points of one step are one row of wandb.
    row, at = {}, None
    for step, values in points(events, resources):
        if row and step != at:
            run.log(row, step=at)
            row = {}
        at = step
        row.update(values)
    if row:
        run.log(row, step=at)
    run.summary.update({**summary(events), "anomalies": anomalies(events)})
    run.finish()


def send_to_mlflow(mlflow, project, events, resources):
    start = events[0]
    mlflow.set_experiment(project)
    with mlflow.start_run(run_name=start["exp"]):
        # Keys may hold letters, digits, _ - . / and blanks; values 6000 characters, 100 of them a call.
        items = [(key, str(value)[:6000]) for key, value in settings(start).items()]
        for begin in range(0, len(items), 100):
            mlflow.log_params(dict(items[begin:begin + 100]))
        for step, values in points(events, resources):
            mlflow.log_metrics(values, step=step)
        mlflow.log_metrics(summary(events))
        mlflow.set_tag("run_id", start["run_id"])
        if anomalies(events):
            mlflow.set_tag("anomalies", "\n".join(anomalies(events))[:5000])


def send_to_comet(comet_ml, project, events, resources):
    start = events[0]
    experiment = comet_ml.Experiment(project_name=project)
    experiment.set_name(start["exp"])
    experiment.log_parameters(settings(start))
    for step, values in points(events, resources):
        experiment.log_metrics(values, step=step)
    experiment.log_metrics(summary(events))
    for text in anomalies(events):
        experiment.log_text(text)
    experiment.end()


SERVICES = {"wandb": ("wandb", send_to_wandb), "mlflow": ("mlflow", send_to_mlflow), "comet": ("comet_ml", send_to_comet)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR")
    parser.add_argument("--to", required=True, choices=sorted(SERVICES))
    parser.add_argument("--project", default="tessera")
    parser.add_argument("--resources", action="store_true", help="send samples of memory and utilisation, too")
    options = parser.parse_args()
    runs = [read_events(directory) for directory in options.runs]  # all of them, before anything is sent
    package, send = SERVICES[options.to]
    try:
        service = importlib.import_module(package)
    except ImportError as error:
        sys.exit(f"--to {options.to} needs the Python package {package}: pip install {package}  ({error})")
    for directory, events in zip(options.runs, runs):
        send(service, options.project, events, options.resources)
        print(f"{directory}: sent to {options.to} as {events[0]['exp']}")


if __name__ == "__main__":
    main()
