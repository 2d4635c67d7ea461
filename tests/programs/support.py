# SPDX-License-Identifier: MIT
"""Runs the programs as a user does, and checks events against the schema. Standard library only."""
import json
import os
import pathlib
import re
import resource
import subprocess
import sys

ROOT, BIN = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
MPIRUN = sys.argv[3] if len(sys.argv) > 3 else ""
DATA = ROOT / "examples/data"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as ctest does: bits are compared, and a team of threads is slow where others use the cores
TIME_LIMIT_S = 400  # only an upper bound, for a host that others use too: a hang fails the test


class Result:
    def __init__(self, code, text, command):
        self.code, self.text, self.command = code, text, command


def launch(program, arguments, mpi_ranks=0, memory_bytes=None, environment=None):
    """mpi_ranks > 0 runs under mpirun; arguments may then be one list per rank."""
    binary = str(BIN / program)
    if mpi_ranks:
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = [MPIRUN, *root, "--oversubscribe", "--bind-to", "none"]
        if arguments and isinstance(arguments[0], list):
            for i, mine in enumerate(arguments):
                command += ([":"] if i else []) + ["-n", "1", binary, *mine]
        else:
            command += ["-n", str(mpi_ranks), binary, *arguments]
    else:
        command = [binary, *arguments]
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIME_LIMIT_S,
                          preexec_fn=limit if memory_bytes else None,
                          env={**os.environ, **(environment or {})})
    return Result(done.returncode, done.stdout.decode(errors="replace"), " ".join(map(str, command)))


class Checker:
    """Counts checks and failures; every failure says what was run and what came out."""

    def __init__(self):
        self.checks = self.failures = 0

    def that(self, condition, what, result=None):
        self.checks += 1
        if not condition:
            self.failures += 1
            print(f"FAILED: {what}")
            if result is not None:
                print(f"  {result.command}\n  exit {result.code}\n  " + result.text[-3000:].replace("\n", "\n  "))

    def finish(self):
        print(f"{self.checks - self.failures} of {self.checks} checks passed")
        sys.exit(1 if self.failures else 0)


TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
         "null": type(None)}


def schema_errors(value, schema, root, where=""):
    """The part of JSON Schema that docs/schema uses."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if "oneOf" in schema:
        fitting = [s for s in schema["oneOf"] if not list(schema_errors(value, s, root, where))]
        if len(fitting) != 1:
            name = value.get("event") if isinstance(value, dict) else None
            hint = [s for s in schema["oneOf"] if s["$ref"].endswith("/" + str(name))]
            details = list(schema_errors(value, hint[0], root, where)) if hint else []
            yield f"{where}: fits {len(fitting)} of the alternatives {details[:3]}"
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is not one of {schema['enum']}"
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        fits = any(isinstance(value, TYPES[n]) and (n == "boolean" or not isinstance(value, bool)) for n in names)
        if not fits:
            yield f"{where}: {value!r} is not of type {names}"
            return
    if "minimum" in schema and value is not None and value < schema["minimum"]:
        yield f"{where}: {value} is below {schema['minimum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{where}: {value!r} does not match {schema['pattern']}"
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for key in schema.get("required", []):
            if key not in value:
                yield f"{where}: {key} is missing"
        for key, item in value.items():
            if key in properties:
                yield from schema_errors(item, properties[key], root, f"{where}.{key}")
            elif schema.get("additionalProperties") is False:
                yield f"{where}: unknown key {key}"
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            yield from schema_errors(item, schema["items"], root, f"{where}[{i}]")


def read_events(check, directory):
    """The events of a run, each checked against the schema."""
    schema = json.loads((ROOT / "docs/schema/metrics.schema.json").read_text())
    events = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for i, event in enumerate(events):
        errors = list(schema_errors(event, schema, schema, f"line {i + 1}"))
        check.that(not errors, f"{directory}/metrics.jsonl fits the schema: {errors[:3]}")
    return events
