# SPDX-License-Identifier: MIT
"""Plants one defect at a time into rank 1 of a job, and asserts what every rank says of it and how it ends.

  planted.py PROGRAM TRANSPORT [--mpirun COMMAND] [--ranks N] [--jobs N] [--cases a,b] [--show]     (PROGRAM: planted)
"""
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "channel"))
from jobs import LAUNCHERS, command_line, end, free_port, start  # noqa: E402

arguments = command_line("program", "transport", mpirun="", ranks=3, jobs=4, cases="", show=False)
THREADS = arguments.transport == "local"
PATIENCE_S = 60
OTHERS = [rank for rank in range(arguments.ranks) if rank != 1]
WAITED = (r"ranks " + ", ".join(map(str, OTHERS)) if len(OTHERS) > 1 else "rank 0") + r" ha(s|ve) waited since \d{4}-"
SUM, NAMED = r"all_reduce\(1000 x Float, sum\) of h\.7\.weight \(call \d+ of world( checked)?\), step 3, backward", r"^rank 1 \(host [^)]+\) "
CAME = r" (ha(s|ve) waited since|came to it at) \d{4}-"
ELSE = NAMED + "called something else: "
LATE = r", for more than 2 s \(TESSERA_COLLECTIVE_TIMEOUT_S\)"
HALF = arguments.ranks == 2  # then neither of two calls is the one that most ranks made: rank 0's counts


# MPI and NCCL do not notice such calls, or end in whatever they do then: there calls are compared first (JobOptions::debug_collectives).
BYTES = ["count", "count_late", "count_of_gather", "dtype", "order", "step"]
CHECKED = {"mpi": BYTES, "nccl": [*BYTES, "skipped", "operation", "root"]}.get(arguments.transport, [])
# Nor does anything compare NCCL's messages. Threads: the control channel is a communicator, in which more ranks wait than for the message.
UNSEEN = {"nccl": ["message_count"], "local": ["partner_later"]}.get(arguments.transport, [])


def called(what):
    return "; rank 1 called " + what


# The exit code, and what the sentence must hold.
CASES = {
    "slow_in_time": (0, []),
    "slow": (5, [NAMED + "has not come: " + SUM, WAITED, LATE, r"; rank 1 last called all_reduce\(1000 x Float, sum\) of h\.6\.weight"]),
    "dead": (5, [NAMED + ("has ended: " if THREADS else "has died: ") + SUM, WAITED]),
    "stopped": (5, [NAMED + ("has not come: " if THREADS else "does not answer: .*") + SUM, WAITED, LATE]),
    "skipped": (2, [ELSE + SUM, CAME, called(r"all_gather\(1000 x Float\) of h\.8\.weight")]),
    "skipped_last": (5, [NAMED + "has not come: " + SUM, WAITED, LATE, "; rank 1 waits in "]),
    "count": (2, [ELSE + SUM, called(r"all_reduce\(500 x Float, sum\) of h\.7\.weight")]),
    "count_late": (2, [ELSE + SUM, called(r"all_reduce\(500 x Float, sum\) of h\.7\.weight")]),
    "count_of_gather": (2, [ELSE + r"all_gather\(300 x Float\) of h\.7\.weight", called(r"all_gather\(200 x Float\) of h\.7\.weight")]),
    "dtype": (2, [ELSE + SUM, called(r"all_reduce\(1000 x Half, sum\) of h\.7\.weight")]),
    "order": (2, [ELSE + SUM, called(r"all_reduce\(400 x Float, sum\) of h\.8\.weight")]),
    "operation": (2, [ELSE + SUM, called(r"all_gather\(1000 x Float\) of h\.8\.weight")]),
    "root": (2, [ELSE + r"broadcast\(1000 x Float, root 0\) of h\.7\.weight", called(rf"broadcast\(1000 x Float, root {OTHERS[-1] if not HALF else 1}\)")]),
    "partner": (5, [NAMED + r"has not come: recv\(1000 x Float\) of h\.7\.activations \(message 0 from rank 1 to rank 0 of world\), step 3, backward",
                    "rank 0 has waited since", LATE, "; rank 1 (waits in|last called) (send|recv|exchange|all_gather)"]),
    "partner_later": (5, [NAMED + r"has not come: recv\(1000 x Float\) of h\.7\.activations \(message 1 from rank 1 to rank 0 of world\), step 3, backward",
                          "rank 0 has waited since", LATE, "; rank 1 waits in exchange"]),
    "message_count": (2, [ELSE + r"recv\(1000 x Float\) of h\.7\.activations \(message 0 from rank 1 to rank 0 of world\)",
                          called(r"send\(900 x Float\) of h\.7\.activations")]),
    "phase": (5, [NAMED + "has not come: " + SUM, WAITED, LATE,
                  r"; rank 1 waits in all_reduce\(3 x Float, sum\) of loss \(call 0 of world\.\dc0\), step 3, evaluation"]),
    "step": (2, [ELSE + r"all_reduce\(400 x Float, sum\) of h\.7\.weight \(call \d+ of world( checked)?\), step 3, backward",
                 called(r"all_reduce\(1000 x Float, sum\) of h\.8\.weight \(call \d+ of world( checked)?\), step 4, backward")]),
    "closing": (5, [NAMED + ("has ended: " if THREADS else "has died: "), "step 3, backward"]),
    "barrier": (5, [NAMED + r"has not come: barrier\(\) of end of epoch \(call \d+ of world( checked)?\), step 3, backward", WAITED, LATE, "; rank 1 waits in "]),
}


def sentence_of(text):
    """What a rank reports at level E, without the line's head and the list of ranks that say the same."""
    lines = [line for line in text.splitlines() if re.match(r"E \d\d:", line) and re.search(r" of (world|control)[^,]*\), step ", line)]
    return [re.sub(r" \(ranks? [-, 0-9]+: (same|alike)\)$", "", line[line.index("rank 1 (host"):]) if "rank 1 (host" in line else line for line in lines]


def command_of(name):
    return [arguments.program, arguments.transport, name, *(["checked"] if name in CHECKED else [])]


def run_processes(name, folder, variables):
    """Exit codes and texts by rank; None for the one that is dead or stopped."""
    ranks = [start(command_of(name), r, arguments.ranks, variables["port"], **variables["environment"])
             for r in range(arguments.ranks)]
    try:
        texts = {}
        for number, rank in enumerate(ranks):
            if number == 1 and name == "stopped":
                continue
            texts[number] = rank.communicate(timeout=PATIENCE_S)[0]
        if name == "stopped":
            ranks[1].send_signal(signal.SIGCONT)
            ranks[1].communicate(timeout=PATIENCE_S)
        if name in ("dead", "closing"):
            del texts[1]
        return [ranks[number].returncode for number in texts], list(texts.values())
    finally:
        end(ranks)


def run_mpirun(name, folder, variables):
    clean = {key: value for key, value in os.environ.items() if not LAUNCHERS.match(key)}
    command = [arguments.mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--output-filename", str(folder / "out"), "-n",
               str(arguments.ranks), *command_of(name)]
    done = subprocess.run(command, env={**clean, "OMP_NUM_THREADS": "1", **variables["environment"]}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=PATIENCE_S, check=False)
    texts = ["".join(path.read_text() for path in sorted(folder.glob(f"out/*/rank.{r}/std*"))) for r in range(arguments.ranks)]
    if name in ("dead", "closing", "stopped"):
        del texts[1]
    code = 5 if name in ("dead", "closing") and done.returncode == 137 else done.returncode  # the first to end counts for mpirun
    return [code], texts


def run_threads(name, folder, variables):
    done = subprocess.run([arguments.program, "local", name], env={**os.environ, "OMP_NUM_THREADS": "1", **variables["environment"]},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False)
    return [done.returncode], [done.stdout]


def logs_of(folder):
    return {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("operations-rank-*.jsonl")}


def check_logs(name, logs):
    wanted = {f"operations-rank-{r}.jsonl" for r in OTHERS}
    if not wanted <= set(logs):
        return f"the last operations were written of {sorted(logs)} only"
    for file in sorted(wanted):
        newest = logs[file][-1]
        for key in ("rank", "number", "step", "phase", "operation", "label", "communicator", "sequence", "state", "enqueued_unix_s"):
            if key not in newest:
                return f"{file}: a line without {key}: {newest}"
        first = [line for line in logs[file] if line["label"] == "h.6.weight"][0]
        if first["state"] == "started":  # the others may be ahead
            first["state"] = "done"
        if (first["state"], first["bytes"], first["dtype"], first["step"], first["phase"]) != ("done", 4000, "Float", 2, "backward"):
            return f"{file}: the first sum is written as {first}"
    return ""


def run(name):
    code, pieces = CASES[name]
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        variables = {"port": free_port(), "environment": {"TESSERA_COLLECTIVE_TIMEOUT_S": "2", "TESSERA_OPERATION_LOG": text, "TESSERA_CACHE_DIR": "none"}}
        runner = run_threads if THREADS else run_mpirun if arguments.mpirun else run_processes
        begin = time.monotonic()
        try:
            codes, texts = runner(name, folder, variables)
        except subprocess.TimeoutExpired:
            return f"{name}: does not end within {PATIENCE_S} s"
        took, logs = time.monotonic() - begin, logs_of(folder)
    everything = "\n".join(texts)
    sentences = [sentence_of(one) for one in texts]
    if arguments.show:
        print(f"--- {name}: {codes} after {took:.1f} s\n" + "\n".join(map(str, sentences if any(sentences) else texts)), flush=True)
    if set(codes) != {code}:
        return f"{name}: exit codes {codes}, expected {code}\n{everything}"
    if code == 0:
        return f"{name}: all is well, but said is\n{everything}" if any(sentences) or logs else ""
    if any(len(one) != 1 for one in sentences) or len({one[0] for one in sentences}) != 1:
        return f"{name}: not one sentence on every rank: {sentences}\n{everything}"
    missing = [piece for piece in pieces if not re.search(piece, sentences[0][0])]
    if missing:
        return f"{name}: '{sentences[0][0]}' lacks {missing}\n{everything}"
    return check_logs(name, logs) and f"{name}: {check_logs(name, logs)}"


names = [name for name in arguments.cases.split(",") if name] or [name for name in CASES if name not in UNSEEN]
with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
    failures = [failure for failure in pool.map(run, names) if failure]
for failure in failures:
    print("FAILED:", failure, "\n")
print(f"{len(names) - len(failures)} of {len(names)} planted cases over {arguments.transport} ({socket.gethostname()}) end as they must")
sys.exit(1 if failures else 0)
