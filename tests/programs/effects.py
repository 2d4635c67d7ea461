# SPDX-License-Identifier: MIT
"""No option without an effect. Walks over the flags that --help all of the fine-tuning programs lists, and runs each with other values where it may act.
Something that one can observe must differ then. effects_*.py have the entries, one file for one or two sections of --help.

What is seen of a context must be the same in a second run of it: so a flag that does nothing is noticed, with its companions or without.
"""
import dataclasses
import itertools
import json
import os
import pathlib
import re
import resource
import subprocess
import tempfile
import typing

from support import BIN, DATA, MPIRUN, ROOT, TIME_LIMIT_S, Checker

PROGRAMS = ["squad", "causal", "classification", "chat"]
SECTIONS = {"General", "Model", "Data", "Training", "Adapters", "Strategy and precision", "Run and output"}
FOLDER = tempfile.TemporaryDirectory(prefix="tessera_effects_")  # goes with the process
_numbers = itertools.count()


def fresh(name="run"):
    folder = pathlib.Path(FOLDER.name) / f"{name}{next(_numbers)}"
    folder.mkdir()
    return folder


# Rows of random ids need no tokenizer. None leaves a flag out.
ROWS = {"model_config": "bloom-tiny", "random_rows": 24, "random_row_length": 12, "max_seq_length": 32, "per_device_train_batch_size": 4,
        "max_steps": 3, "learning_rate": 1e-2, "save_final": False}
NO_ROWS = {"random_rows": None, "random_row_length": None}
TEXTS = {**ROWS, **NO_ROWS, "tokenizer": DATA / "tokenizer", "max_seq_length": 96}  # with files of text


def in_words(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def words(flags):
    return [f"--{name}={in_words(value)}" for name, value in flags.items() if value is not None]


class Run:
    """What one call of a program left."""

    def __init__(self, code, text, out):
        self.code, self.text, self.out = code, text, pathlib.Path(out)
        path = self.out / "metrics.jsonl"
        self.events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.steps = self.all("step")
        self.losses = self.column("loss")
        self.start, self.end = (dict(*self.all(name)) for name in ("run_start", "run_end"))
        self.weights = self.end.get("param_hash_final")
        self.evals = [{key: e[key] for key in e if key.startswith("eval_") and "runtime" not in key and "per_second" not in key}
                      for e in self.all("eval")]

    def all(self, event):
        return [e for e in self.events if e["event"] == event]

    def column(self, key):
        return [step[key] for step in self.steps]

    def says(self, pattern):
        return re.findall(pattern, self.text)

    def files(self, pattern="**/*"):
        return sorted(str(path.relative_to(self.out)) for path in self.out.glob(pattern))

    def held(self, *kinds):
        """Measured bytes of these kinds, of the rank that held most."""
        return [self.end.get(f"measured_{kind}_bytes") for kind in kinds]

    def numbers(self):
        return self.losses, self.weights, self.evals


def command(program, flags, mpi=0):
    line = [BIN / f"tessera-finetune-{program}", *words(flags)]
    if mpi:
        line = [MPIRUN, *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--oversubscribe", "--bind-to", "none", "-n", mpi, *line]
    return [str(word) for word in line]


def environment():
    """What acts on CPUs is asked on hosts with GPUs, too."""
    return {**os.environ, "TESSERA_CACHE_DIR": "none", "CUDA_VISIBLE_DEVICES": ""}


def run(program, flags, mpi=0):
    flags = {"output_dir": fresh() / "out", **flags}
    done = subprocess.run(command(program, flags, mpi), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIME_LIMIT_S, env=environment())
    return Run(done.returncode, done.stdout.decode(errors="replace"), flags["output_dir"])


def planned(program, flags):
    """What tessera-plan says of these flags on a GPU, which this host need not have."""
    flags = {"task": program, "card": "h200", **flags, "save_final": None}
    done = subprocess.run([str(BIN / "tessera-plan"), *words(flags)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIME_LIMIT_S,
                          env=environment())
    return Run(done.returncode, done.stdout.decode(), "/nowhere")


class Nothing(str):
    """In place of what should be seen."""


@dataclasses.dataclass
class Effect:
    flag: str
    what: str  # changes, in words
    values: list  # others than the context's: of the flag, or of the flag and companions
    sees: typing.Callable  # of a Run; differs for the context and every value
    context: dict = dataclasses.field(default_factory=lambda: dict(ROWS))
    program: str = "causal"
    expect: typing.Callable = None  # of the context's run and the value's: which way it changes
    codes: tuple = ()  # exit statuses of the values, unless all are 0
    code: int = 0  # of the context
    run: typing.Callable = run
    bits: bool = False  # of a flag that changes cost: no number changes at all
    alike: dict = dataclasses.field(default_factory=dict)  # {value: other values, in words, that it may look like here}
    gpu: str = ""  # why only GPUs show the effect itself
    changes: str = ""  # instead of what the table says

    def sight(self, seen):
        try:
            return self.sees(seen)
        except (KeyError, IndexError, TypeError, ValueError, OSError) as error:  # the run left less than it should
            return Nothing(f"nothing: {error!r}, exit code {seen.code}")

    def goes_the_right_way(self, base, other):
        try:
            return not self.expect or self.expect(base, other)
        except (KeyError, IndexError, TypeError, ValueError, OSError):
            return False


def listed(program):
    """{section: {flag: (choices, default, help)}} as --help all has them."""
    text = subprocess.run([str(BIN / f"tessera-finetune-{program}"), "--help", "all"], stdout=subprocess.PIPE, text=True).stdout
    sections, flags = {}, None
    for line in re.sub(r"\n +\|", "|", text).replace("\n" + " " * 36, " ").splitlines():  # rows over several lines
        if title := re.fullmatch(r"(\w[\w ]*):", line):
            flags = sections.setdefault(title[1], {})
        elif row := re.fullmatch(r"  --(\w+) (\S*) *(.*?)(?: \[(.*)\])?", line):
            flags[row[1]] = (row[2].split("|") if row[2] else [], (row[4] or "").strip('"'), row[3])
    return sections


def table():
    """{(flag, help): what another value changes} of docs/reference/flags.md."""
    rows = re.findall(r"^\| `--(\w+)`[^|]* \| [^|]* \| [^|]* \| (\w+) \| (.*) \|$", (ROOT / "docs/reference/flags.md").read_text(), re.M)
    return {(flag, text): changes for flag, changes, text in rows}


def close(a, b, tolerance=1e-5):
    return len(a) == len(b) and all(x == y or None not in (x, y) and abs(x - y) <= tolerance * abs(y) for x, y in zip(a, b))


class Walk:
    def __init__(self):
        self.check, self.runs = Checker(), {}

    def once(self, effect, flags, again=0):
        key = (effect.program, effect.run, repr(sorted(flags.items(), key=lambda item: item[0])), again)
        if key not in self.runs:
            self.runs[key] = effect.run(effect.program, flags)
        return self.runs[key]

    def show(self, effect, changes, choices, default):
        name, base = f"--{effect.flag} ({effect.what})", self.once(effect, effect.context)
        self.that(base.code == effect.code, f"{name}: the context alone ends with {effect.code}", base)
        seen = {in_words(effect.context.get(effect.flag, default)): effect.sight(base)}
        again = effect.sight(self.once(effect, effect.context, again=1))
        self.that([again] == list(seen.values()) and not isinstance(again, Nothing), f"{name}: what is seen is the same twice: {seen}, {again}", base)
        for value, code in zip(effect.values, effect.codes or itertools.repeat(0)):
            with_value = value if isinstance(value, dict) else {effect.flag: value}
            companions = {flag: with_value[flag] for flag in with_value if flag != effect.flag}
            other, text = self.once(effect, {**effect.context, **with_value}), in_words(with_value[effect.flag])
            sight = effect.sight(other)
            same = [v for v, s in seen.items() if s == sight and v not in effect.alike.get(text, ())]
            if companions and effect.sight(self.once(effect, {**effect.context, **companions})) == sight:
                same.append(f"{companions} alone")
            self.that(other.code == code, f"{name}: {text} ends with {code}", other)
            self.that(not same and not isinstance(sight, Nothing), f"{name}: {text} changes nothing beside {same}: {sight}", other)
            self.that(effect.goes_the_right_way(base, other), f"{name}: {text} changes it the wrong way: {seen}, {sight}", other)
            seen[text] = sight
            self.judge_numbers(effect, changes, f"{name}: {text}", base, other)
        return [choice for choice in choices if choice not in seen]

    def judge_numbers(self, effect, changes, name, base, other):
        if changes == "numbers" and not effect.gpu:
            self.that(other.numbers() != base.numbers(), f"{name} changes numbers: {other.numbers()}", other)
        elif changes == "cost" and other.code != base.code:
            return  # refused
        elif changes == "cost" and effect.bits:
            self.that(other.numbers() == base.numbers(), f"{name} changes no bit: {base.numbers()}, {other.numbers()}", other)
        elif changes == "cost":
            evals = [[list(e.values()) for e in each.evals] for each in (base, other)]
            near = close(base.losses, other.losses) and close(*map(lambda e: sum(e, []), evals))
            self.that(near, f"{name} changes no number: {base.losses, base.evals}, {other.losses, other.evals}", other)
        elif changes == "output":
            first, second = ({step["step"]: step["loss"] for step in each.steps} for each in (base, other))
            both = sorted(first.keys() & second.keys())
            self.that(close([first[s] for s in both], [second[s] for s in both]), f"{name} changes no loss: {first}, {second}", other)

    def that(self, condition, what, seen):
        self.check.that(condition, what)
        if not condition:
            print(f"  exit {seen.code}\n  " + seen.text[-1500:].replace("\n", "\n  "))


def walk(file, sections, effects):
    """Every flag of these sections has an entry, every entry a flag, and every entry holds."""
    walked, changes, helps = Walk(), table(), {program: listed(program) for program in PROGRAMS}
    reached = {}  # (flag, help): what its entries leave of the choices
    for program, all_sections in helps.items():
        walked.check.that(set(all_sections) == SECTIONS, f"the sections of --help are {set(all_sections)}: give a new one to one of effects_*.py")
    for effect in effects:
        choices, default, text = next((helps[effect.program][s][effect.flag] for s in sections if effect.flag in helps[effect.program].get(s, {})),
                                      (None, None, None))
        walked.check.that(text is not None, f"tessera-finetune-{effect.program} has no flag --{effect.flag}: remove its entry from {file}")
        if text is None:
            continue
        kind = effect.changes or changes.get((effect.flag, text), "")
        walked.check.that(kind or effect.flag in helps[effect.program]["General"], f"docs/reference/flags.md has a row for --{effect.flag}: '{text}'")
        left = set(walked.show(effect, kind, choices, default))
        reached[effect.flag, text] = reached.get((effect.flag, text), left) & left
    for program, all_sections in helps.items():
        flags = {flag: row[2] for section in sections for flag, row in all_sections.get(section, {}).items()}
        for flag, text in flags.items():
            walked.check.that((flag, text) in reached,
                              f"--{flag} of tessera-finetune-{program} ({text}) has no effect on record: add an Effect to tests/programs/{file} with "
                              "a context in which it acts, other values, and what differs then; delete the flag if nobody can say what does")
            walked.check.that(not reached.get((flag, text)), f"--{flag}: no entry reaches {reached.get((flag, text))}: add these values to {file}")
        count = sum((flag, text) in reached for flag, text in flags.items())
        print(f"tessera-finetune-{program}: effects of {count} of {len(flags)} flags of {', '.join(sorted(sections))}")
    only = [f"--{effect.flag} ({effect.gpu})" for effect in effects if effect.gpu]
    print("only GPUs show: " + (", ".join(only) or "none"))
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{len(walked.runs)} runs, {usage.ru_utime + usage.ru_stime:.0f} s of CPU")
    walked.check.finish()
