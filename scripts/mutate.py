#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Plants mutants of C++ files one at a time, builds, and runs the tests that should find each.

  scripts/mutate.py FILE...                 mutants of these files
  scripts/mutate.py --since COMMIT          of the sources changed since then (without tests)
  --limit N     at most N of them, chosen by --seed S, the same ones every time
  --kinds A,B   only these kinds; scripts/mutations.py describes them
  --list        only print them: file, line, kind, the line before and after
  --targets A,B and --tests REGEX   what is built and which ctest entries run; default: the test programs of the file's folder
  --preset P    a configured folder build/P; --root DIR: another tree than this script's
  --least N     the status is 1 when fewer than N percent of those that compile are killed
  --restart     forget build/mutate/log.jsonl, from which a second call at the same commit goes on

A mutant is killed when the tests pass without it and fail with it, or run four times as long. A survivor asks for a test, or is
equivalent to the program. Files are restored at every end, by Ctrl-C too; after a kill -9 the next call restores them.
"""
import argparse
import contextlib
import hashlib
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

import mutations

SOURCES = (".h", ".cpp")
FOLDERS = ("include/", "lib/", "backends/")
# Test programs of folders whose tests do not lie in tests/unit/FOLDER, or not all of them; the longest name counts.
MORE_PROGRAMS = {
    "sharding": ["test_parity"],
    "backends": ["test_parity"],
    "backends/pipeline": ["test_parity_pipeline", "test_parity_vocabulary"],
    "generation": ["test_generation"],
    "compare": ["test_programs"],
    "interop": ["test_programs"],
    "run": ["test_programs"],
    "report": ["test_report"],
    "tools": ["test_programs"],
    "tools/plan": ["test_plan_tool"],
}


def folder_of(path):
    """lib/comm/tcp/a.cpp is of comm/tcp, include/tessera/comm/a.h of comm."""
    parts = pathlib.PurePosixPath(path).parts
    begin = {"include": 2, "lib": 1}.get(parts[0], 0)
    return "/".join(parts[begin:-1])


def programs_of(root, path):
    """The test programs that should find a defect of this file."""
    folder, found = folder_of(path), []
    build_file = root / "tests/unit" / folder.split("/")[0] / "CMakeLists.txt"
    if build_file.is_file():
        found = re.findall(r"tessera_test\(\s*(\w+)", build_file.read_text())
    names = [name for name in MORE_PROGRAMS if folder == name or folder.startswith(name + "/")]
    return found + MORE_PROGRAMS[max(names, key=len)] if names else found


def changed_since(root, commit):
    command = ["git", "-C", str(root), "diff", "--name-only", "--diff-filter=d", commit, "--"]
    names = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return sorted(name for name in names if name.startswith(FOLDERS) and name.endswith(SOURCES) and "/generated/" not in name)


def choose(root, paths, kinds, limit, seed):
    """(path, text, mutant) of all files, or `limit` of them by seed."""
    found = []
    for path in paths:
        text = (root / path).read_bytes().decode()
        found += [(path, text, mutant) for mutant in mutations.mutants(text) if mutant.kind in kinds]
    if limit is not None and limit < len(found):
        chosen = sorted(random.Random(seed).sample(range(len(found)), limit))
        found = [found[i] for i in chosen]
    return found


class Planted:
    """A file with a mutant in it; its text of before is kept beside the log until it is back."""

    def __init__(self, root, folder):
        self.root, self.journal = root, folder / "planted.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.restore()  # what a killed call has left

    def restore(self):
        if self.journal.exists():
            kept = json.loads(self.journal.read_text(encoding="utf-8"))
            (self.root / kept["path"]).write_bytes(kept["text"].encode())
            self.journal.unlink()

    @contextlib.contextmanager
    def plant(self, path, text, mutant):
        new = self.journal.with_suffix(".new")
        new.write_text(json.dumps({"path": path, "text": text}), encoding="utf-8")
        new.replace(self.journal)
        try:
            (self.root / path).write_bytes(mutant.apply(text).encode())
            yield
        finally:
            self.restore()


class Judge:
    """Builds and tests in build/PRESET; knows how long the tests take without a mutant."""

    def __init__(self, root, preset, jobs, log_file):
        self.root, self.build, self.jobs, self.log_file = root, root / "build" / preset, jobs, log_file
        self.seconds = {}

    def call(self, command, limit=None):
        """The exit status, or None after `limit` seconds; all its processes end with it."""
        if interrupted.is_set():  # Python drops what interrupt() raises while an object is destroyed
            raise KeyboardInterrupt
        with self.log_file.open("wb") as log:
            process = subprocess.Popen(command, cwd=self.root, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:
                    subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], check=False)
                    process.wait()

    def compile(self, targets):
        return self.call(["cmake", "--build", str(self.build), "-j", str(self.jobs), "--target", *targets]) == 0

    def test(self, tests, limit=None):
        return self.call(["ctest", "--test-dir", str(self.build), "-R", tests, "-j", str(self.jobs), "--no-tests=error", "--stop-on-failure",
                          "--output-on-failure"], limit)

    def baseline(self, targets, tests):
        """Without a mutant all is well, or it is an error of its own."""
        if (tuple(targets), tests) in self.seconds:
            return
        if not self.compile(targets):
            sys.exit(f"mutate: {' '.join(targets)} does not build without a mutant; see {self.log_file}")
        begin = time.monotonic()
        if self.test(tests) != 0:
            sys.exit(f"mutate: the tests '{tests}' do not pass without a mutant; see {self.log_file}")
        self.seconds[tuple(targets), tests] = time.monotonic() - begin

    def judge(self, targets, tests):
        if not self.compile(targets):
            return "not compiling"
        status = self.test(tests, 4 * self.seconds[tuple(targets), tests] + 30)
        return "survived" if status == 0 else "killed"


def shown(text, mutant):
    """The line of a mutant before and after."""
    begin = text.rfind("\n", 0, mutant.begin) + 1
    end = text.find("\n", mutant.end)
    before, after = text[begin:end], text[begin:mutant.begin] + mutant.after + text[mutant.end:end]
    return " ".join(before.split()), " ".join(after.split())


def commit_of(root):
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return head.stdout.strip()


def key_of(commit, path, text, mutant, targets, tests):
    parts = [commit, path, text, mutant.begin, mutant.end, mutant.after, targets, tests]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def run(root, chosen, plan, judge, folder, say=print):
    """Counts by result. plan(path) is (targets, tests); results that the log has are not made again."""
    log, known, commit = folder / "log.jsonl", {}, commit_of(root)
    planted = Planted(root, folder)
    if log.exists():
        known = {row["key"]: row for row in map(json.loads, log.read_text(encoding="utf-8").splitlines())}
    counts = {"killed": 0, "survived": 0, "not compiling": 0}
    for path, text, mutant in chosen:
        targets, tests = plan(path)
        key, (before, after), begin = key_of(commit, path, text, mutant, targets, tests), shown(text, mutant), time.monotonic()
        if key in known:
            result = known[key]["result"]
        else:
            judge.baseline(targets, tests)
            with planted.plant(path, text, mutant):
                result = judge.judge(targets, tests)
            row = {"key": key, "result": result, "file": path, "line": mutant.line(text), "kind": mutant.kind, "before": before, "after": after,
                   "seconds": round(time.monotonic() - begin, 1)}
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        counts[result] += 1
        say(f"{result:13}  {path}:{mutant.line(text)} {mutant.kind}: {before}  =>  {after}", flush=True)
    return counts


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--since")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--kinds", default=",".join(mutations.KINDS))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--targets")
    parser.add_argument("--tests")
    parser.add_argument("--preset", default="release")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--least", type=float, default=0)
    parser.add_argument("--restart", action="store_true")
    given = parser.parse_args()
    if bool(given.files) == bool(given.since):
        parser.error("name files, or --since COMMIT")
    unknown = set(given.kinds.split(",")) - set(mutations.KINDS)
    if unknown:
        parser.error(f"no kind {', '.join(sorted(unknown))}; there are: {', '.join(mutations.KINDS)}")
    return given


interrupted = threading.Event()


def interrupt(*_):
    interrupted.set()
    raise KeyboardInterrupt


def main():
    given = arguments()
    root = given.root.resolve()
    folder = root / "build/mutate"
    Planted(root, folder)
    paths = changed_since(root, given.since) if given.since else [str((pathlib.Path.cwd() / f).resolve().relative_to(root)) for f in given.files]
    chosen = choose(root, paths, given.kinds.split(","), given.limit, given.seed)

    def plan(path):
        targets = given.targets.split(",") if given.targets else programs_of(root, path)
        return targets, given.tests or f"^({'|'.join(targets)}): "

    untested = [path for path in paths if not plan(path)[0]]
    if untested:
        print(f"mutate: no test program is known for {', '.join(untested)}; name one with --targets")
        chosen = [one for one in chosen if one[0] not in untested]
    if given.list:
        for path, text, mutant in chosen:
            print(f"{path}:{mutant.line(text)} {mutant.kind}: {'  =>  '.join(shown(text, mutant))}")
        return 0
    if given.restart:
        (folder / "log.jsonl").unlink(missing_ok=True)
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, interrupt)
    try:
        counts = run(root, chosen, plan, Judge(root, given.preset, given.jobs, folder / "last.log"), folder)
    except KeyboardInterrupt:
        print("mutate: interrupted; the tree is as before, and the same call goes on from here", file=sys.stderr)
        return 130
    compiled = counts["killed"] + counts["survived"]
    print(f"{counts['killed']} killed, {counts['survived']} survived, {counts['not compiling']} not compiling, of {len(paths)} files, seed {given.seed}")
    return 1 if compiled and 100 * counts["killed"] < given.least * compiled else 0


if __name__ == "__main__":
    sys.exit(main())
