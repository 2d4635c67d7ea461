# SPDX-License-Identifier: MIT
"""tessera-launch: when it starts mpirun again, what it calls it with, what becomes of signals.

mpirun is played by a script that writes down its arguments and ends as the test says; the last case runs the real one.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

BIN, MPIRUN = os.path.join(sys.argv[2], "tessera-launch"), sys.argv[3] if len(sys.argv) > 3 else ""
PLAYED = """#!/bin/sh
printf '%s\\n' "$*" >> "$0.calls"
n=$(wc -l < "$0.calls")
eval "$(sed -n "${n}p" "$0.ends")"
"""


def start(folder, ends, arguments):
    played = os.path.join(folder, "mpirun")
    for suffix, text in (("", PLAYED), (".ends", "\n".join(ends) + "\n")):
        with open(played + suffix, "w") as file:
            file.write(text)
    os.chmod(played, 0o755)
    if os.path.exists(played + ".calls"):
        os.remove(played + ".calls")
    return subprocess.Popen([BIN, "--mpirun", played, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def calls(folder):
    path = os.path.join(folder, "mpirun.calls")
    return open(path).read().splitlines() if os.path.exists(path) else []


def expect(what, actual, expected):
    if actual != expected:
        sys.exit(f"{what}: {actual!r} instead of {expected!r}")
    print(f"ok: {what}: {actual!r}")


def wait_for(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{what} did not happen within a minute")
        time.sleep(0.01)


def run(folder, ends, arguments):
    process = start(folder, ends, arguments)
    text, _ = process.communicate(timeout=60)
    return process.returncode, text


with tempfile.TemporaryDirectory() as folder:
    once, again = "-n 2 prog --x", "-n 2 prog --x --resume_from_checkpoint auto"
    command = ["-n", "2", "prog", "--x"]
    for end, status, how_often in (("exit 0", 0, 1), ("exit 2", 2, 1), ("exit 4", 4, 1), ("exit 75", 75, 1), ("kill -INT $$", 130, 1)):
        expect(f"{end}: status and calls", (run(folder, [end] * 5, command)[0], calls(folder)), (status, [once] * how_often))
    status, text = run(folder, ["exit 5", "kill -KILL $$", "exit 0"], command)
    expect("a lost peer, a killed mpirun, success", (status, calls(folder)), (0, [once, again, again]))
    expect("both restarts are said", [line.split("; ")[1] for line in text.splitlines()],
           ["restart 1 of 3 from the newest checkpoint", "restart 2 of 3 from the newest checkpoint"])
    status, text = run(folder, ["exit 5"] * 9, ["--max-restarts", "1", *command])
    expect("no more than --max-restarts", (status, len(calls(folder)), "no restart is left of 1" in text), (5, 2, True))
    run(folder, ["exit 5", "exit 0"], [*command, "--resume_from_checkpoint", "out/checkpoint-7"])
    expect("the user's own checkpoint stays", calls(folder), [once + " --resume_from_checkpoint out/checkpoint-7"] * 2)

    def started(ends):
        for mark in ("ready", "usr1"):
            if os.path.exists(os.path.join(folder, "mpirun." + mark)):
                os.remove(os.path.join(folder, "mpirun." + mark))
        process = start(folder, [ends + """ : > "$0.ready"; while :; do sleep 0.05; done"""], command)
        wait_for(lambda: os.path.exists(os.path.join(folder, "mpirun.ready")), "the played mpirun's start")
        return process

    for number, status in ((signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)):
        process = started("trap 'echo usr1; exit 75' USR1; trap 'echo term; exit 143' TERM;")
        process.send_signal(number)
        text, _ = process.communicate(timeout=60)
        expect(f"{number.name} reaches mpirun as SIGUSR1", (process.returncode, text, len(calls(folder))), (status, "usr1\n", 1))
    process = started("""trap ': > "$0.usr1"' USR1; trap 'exit 143' TERM;""")
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: os.path.exists(os.path.join(folder, "mpirun.usr1")), "the first signal's arrival")
    process.send_signal(signal.SIGTERM)
    expect("the second SIGTERM stays one, and nothing is restarted", (process.wait(timeout=60), len(calls(folder))), (143, 1))

for arguments, message in ((["--flag"], "unknown flag --flag"), (["-n", "x", "prog"], "-n x: expected an integer from 1"),
                           (["-n", "2"], "no program to launch"), (["--mpirun", "/nowhere/mpirun", "prog"], "--mpirun PATH names it")):
    result = subprocess.run([BIN, *arguments], capture_output=True, text=True, timeout=60)
    expect(f"{' '.join(arguments)}: status, one line", (result.returncode, result.stderr.count("\n"), message in result.stderr), (2, 1, True))

if MPIRUN:
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with tempfile.TemporaryDirectory() as folder:
        script = 'if [ "$1" = --resume_from_checkpoint ]; then exit 0; fi; [ $OMPI_COMM_WORLD_RANK = 1 ] && kill -KILL $$; sleep 60'
        result = subprocess.run([BIN, "-n", "2", "--mpirun", MPIRUN, "--mpirun-arg", "--oversubscribe", "sh", "-c", script, "rank"],
                                capture_output=True, text=True, timeout=120, env=environment)
        expect("the real mpirun: a killed rank, then success", (result.returncode, "exit status 137" in result.stderr), (0, True))
