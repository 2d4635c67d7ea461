#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sends the metrics.jsonl of runs to Weights & Biases, MLflow or Comet.

    send_metrics.py --to wandb|mlflow|comet RUN_DIR... [--project NAME] [--resources] [--follow]

RUN_DIR is an --output_dir of a tessera program. Each becomes a run of that service under its experiment's name, with its
configuration, a point a step for every number (train/..., eval/..., with --resources also resource/...), its anomalies as
text and its summary. The service's own Python package does the sending: wandb, mlflow or comet_ml, with the credentials
and addresses that it finds in its usual environment variables and files (WANDB_MODE=offline and a local
MLFLOW_TRACKING_URI work). Nothing else is needed. The programs start this text themselves for --report_to wandb or mlflow,
with --follow: it then sends while the run writes.
"""
import argparse
import importlib
import json
import math
import pathlib
import signal
import sys
import time

COMMON = {"schema", "event", "time_unix_s", "elapsed_s", "run_id", "rank", "step", "gpu"}


def lines_of(path, follow):
    """Whole lines of the file from the last run_start on. follow: waits for more until the run has ended, or this process is told to end."""
    with path.open(encoding="utf-8") as file:
        lines, begun = file.read().split("\n"), 0
        rest = lines.pop()
        if follow:
            begun = max((i for i, line in enumerate(lines) if '"event":"run_start"' in line), default=0)
        ended = False
        for number, line in enumerate(lines[begun:], begun + 1):
            yield number, line
            ended = '"event":"run_end"' in line
        number = len(lines)
        while follow and not ended:
            more = file.read()
            *lines, rest = (rest + more).split("\n")
            for line in lines:
                number += 1
                yield number, line
                if '"event":"run_end"' in line:
                    return
            if not more and follow.ended:
                return
            if not more:
                time.sleep(0.2)
        if rest and not follow:
            yield 0, rest


class Follow:
    """Whether the run that started this process has ended: SIGTERM says so. Ctrl-C is the run's."""

    def __init__(self):
        self.ended = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self.end)

    def end(self, *_):
        self.ended = True


class Run:
    """run_start, and the events behind it, one at a time. A line torn by a kill is left out at the end, and an error anywhere else."""

    def __init__(self, directory, follow=None):
        self.path, self.anomalies, self.summary = pathlib.Path(directory) / "metrics.jsonl", [], {}
        self.events = self.parsed(follow)
        try:
            self.start = next(self.events, {})
        except OSError as error:
            sys.exit(f"{self.path}: {error.strerror}; name the --output_dir of a run that reports to jsonl")
        if self.start.get("event") != "run_start":
            sys.exit(f"{self.path}: does not begin with run_start; is it written by a tessera program?")
        if not follow:
            self.events = iter(list(self.events))  # what is wrong is found before anything is sent

    def parsed(self, follow):
        for number, line in lines_of(self.path, follow):
            if not line:
                continue
            try:
                event = json.loads(line)
            except json.JSONDecodeError as error:
                if number == 0:
                    return
                sys.exit(f"{self.path}:{number}: is no JSON: {error}")
            yield event

    def points(self, resources):
        """(step, numbers) in the order of the run; resources lie at the step before them. Notes anomalies and the summary."""
        step = 0
        for event in self.events:
            kind = event["event"]
            if kind in ("step", "eval"):
                step = event["step"]
                yield step, numbers(event, "train" if kind == "step" else "eval")
            elif kind == "resource" and resources:
                gpu = "" if event["gpu"] is None else f"/gpu{event['gpu']}"
                yield step, numbers(event, "resource" + gpu)
            elif kind == "anomaly":
                self.anomalies.append(f"{event['kind']}: {event['detail']}")
            elif kind == "run_end":
                self.summary = numbers(event, "summary")


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


def begin_wandb(wandb, project, start, follow):
    arguments = dict(project=project, name=start["exp"], config=settings(start), id=start["run_id"])
    try:
        return wandb.init(**arguments)
    except Exception as error:  # no key, no network: a run that is under way keeps its metrics for `wandb sync`
        if not follow:
            raise
        print(f"wandb is offline: {error}")
        return wandb.init(**arguments, mode="offline")


def send_to_wandb(wandb, project, source, resources, follow):
    run = begin_wandb(wandb, project, source.start, follow)
    # Several points of one step are one row of wandb.
    row, at = {}, None
    for step, values in source.points(resources):
        if row and step != at:
            run.log(row, step=at)
            row = {}
        at = step
        row.update(values)
    if row:
        run.log(row, step=at)
    run.summary.update({**source.summary, "anomalies": source.anomalies})
    run.finish()


def send_to_mlflow(mlflow, project, source, resources, follow):
    start = source.start
    mlflow.set_experiment(project)
    with mlflow.start_run(run_name=start["exp"]):
        # Keys may hold letters, digits, _ - . / and blanks; values 6000 characters, 100 of them a call.
        items = [(key, str(value)[:6000]) for key, value in settings(start).items()]
        for begin in range(0, len(items), 100):
            mlflow.log_params(dict(items[begin:begin + 100]))
        for step, values in source.points(resources):
            mlflow.log_metrics(values, step=step)
        mlflow.log_metrics(source.summary)
        mlflow.set_tag("run_id", start["run_id"])
        if source.anomalies:
            mlflow.set_tag("anomalies", "\n".join(source.anomalies)[:5000])


def send_to_comet(comet_ml, project, source, resources, follow):
    experiment = comet_ml.Experiment(project_name=project)
    experiment.set_name(source.start["exp"])
    experiment.log_parameters(settings(source.start))
    for step, values in source.points(resources):
        experiment.log_metrics(values, step=step)
    experiment.log_metrics(source.summary)
    for text in source.anomalies:
        experiment.log_text(text)
    experiment.end()


SERVICES = {"wandb": ("wandb", send_to_wandb), "mlflow": ("mlflow", send_to_mlflow), "comet": ("comet_ml", send_to_comet)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR")
    parser.add_argument("--to", required=True, choices=sorted(SERVICES))
    parser.add_argument("--project", default="tessera")
    parser.add_argument("--resources", action="store_true", help="send samples of memory and utilisation, too")
    parser.add_argument("--follow", action="store_true", help="of one run, the last in RUN_DIR: send while it writes, until it ends or SIGTERM")
    options = parser.parse_args()
    follow = Follow() if options.follow else None
    if follow and len(options.runs) != 1:
        sys.exit("--follow takes one RUN_DIR")
    runs = [Run(directory, follow) for directory in options.runs]  # all of them, before anything is sent
    package, send = SERVICES[options.to]
    try:
        service = importlib.import_module(package)
    except ImportError as error:
        sys.exit(f"--to {options.to} needs the Python package {package}: pip install {package}  ({error})")
    for directory, run in zip(options.runs, runs):
        send(service, options.project, run, options.resources, follow)
        print(f"{directory}: sent to {options.to} as {run.start['exp']}")


if __name__ == "__main__":
    main()
