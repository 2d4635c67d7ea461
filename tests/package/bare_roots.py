# SPDX-License-Identifier: MIT
"""Installs a wheel in bare roots of Debian, with Python and no compiler, and runs packaging/Dockerfile's RUN lines in one.

Usage: bare_roots.py SOURCE_ROOT WHEEL FOLDER [--suites bookworm,trixie,bullseye] [--find-links FOLDER] [--no-dockerfile]
Needs root and debootstrap. FOLDER/SUITE is made where it is not there yet. In suites whose Python or glibc is too old for the wheel, the
installer has to say so. Nothing of this host but its name service, certificates, package sources and pip's settings can be seen from inside.
"""
import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

# What pip says where a suite is too old; None: the wheel works.
SUITES = {"bookworm": None, "trixie": None, "bullseye": r"not a supported wheel on this platform|requires a different Python"}
SETTINGS = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
parser = argparse.ArgumentParser()
parser.add_argument("root", type=pathlib.Path)
parser.add_argument("wheel", type=pathlib.Path)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--suites", default=",".join(SUITES))
parser.add_argument("--find-links", type=pathlib.Path)
parser.add_argument("--no-dockerfile", action="store_true")
options = parser.parse_args()
kept = {name: value for name, value in os.environ.items() if re.fullmatch(r"PIP_[A-Z_]+|[A-Za-z]+_(proxy|PROXY)", name)}
failures = 0


def check(condition, what, text=""):
    global failures
    print(("" if condition else "FAILED: ") + what, flush=True)
    if not condition:
        failures += 1
        print("  " + text[-4000:].replace("\n", "\n  "), flush=True)


def give_settings(root):
    for name in SETTINGS:
        if pathlib.Path(name).exists():
            (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, root / name[1:])


def make_root(suite, packages):
    """A bare system, as its image is: debootstrap's minbase."""
    root = options.folder.absolute() / ("-".join((suite, *packages)))
    if not (root / "complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        include = ["--include=" + ",".join(packages)] if packages else []
        with open(f"{root}.log", "w") as log:
            subprocess.run(["debootstrap", "--variant=minbase", *include, suite, root], stdout=log, stderr=log, check=True)
        give_settings(root)
        configuration = subprocess.run(["apt-config", "dump", "--no-empty", "Acquire::http", "Acquire::https"], stdout=subprocess.PIPE, text=True).stdout
        (root / "etc/apt/apt.conf.d").mkdir(parents=True, exist_ok=True)
        (root / "etc/apt/apt.conf.d/90host").write_text(configuration)
        (root / "complete").touch()
    return root


def inside(root, script, environment=None):
    """Runs a shell's text in the root, in namespaces that end with it; with the sources, the wheel and the packages to be seen in /mnt."""
    settings = {"HOME": "/root", "TERM": "dumb", "LANG": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **kept, **(environment or {})}
    links = options.find_links.absolute() if options.find_links else options.wheel.absolute().parent
    mounts = ('set -e; mount --rbind /dev "$1/dev"; mount -t tmpfs tmpfs "$1/mnt"; mkdir "$1/mnt/source" "$1/mnt/dist" "$1/mnt/links"; '
              'mount --bind "$2" "$1/mnt/source"; mount --bind "$3" "$1/mnt/dist"; mount --bind "$4" "$1/mnt/links"; '
              'exec env -i "${@:6}" chroot "$1" /bin/sh -c "$5"')
    command = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc", "bash", "-c", mounts, "--", root, options.root.absolute(),
               options.wheel.absolute().parent, links, script, *(f"{name}={value}" for name, value in settings.items())]
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def try_wheel(suite):
    root = make_root(suite, ("ca-certificates", "python3", "python3-venv"))
    links = "--find-links /mnt/links" if options.find_links else ""
    has = inside(root, "command -v c++ cc cmake")[1].strip()
    check(not has, f"{suite}: no compiler and no CMake {has}")
    if SUITES[suite] is None:
        status, said = inside(root, f"cd /tmp && python3 -B /mnt/source/tests/package/wheel.py /mnt/source /mnt/dist/{options.wheel.name} {links}")
        (options.folder / f"{suite}.wheel.log").write_text(said)
        check(status == 0 and "keeps its promises" in said, f"{suite}: {said.strip().splitlines()[-1] if said.strip() else status}", said)
        return
    status, said = inside(root, f"rm -rf /tmp/venv && python3 -m venv /tmp/venv && /tmp/venv/bin/pip install /mnt/dist/{options.wheel.name}")
    sentence = next((line for line in said.splitlines() if re.search(SUITES[suite], line)), "")
    check(status != 0 and sentence, f"{suite}: is refused: {sentence}", said)


def instructions(text):
    """(instruction, rest) of a Dockerfile."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip():
            word, rest = line.split(None, 1)
            yield word.upper(), rest


def try_dockerfile():
    """What a builder does, in a root: arguments, environment, copies and commands, in their order."""
    root = make_root("bookworm", ())
    pristine = options.folder.absolute() / "image"
    shutil.rmtree(pristine, ignore_errors=True)
    subprocess.run(["cp", "-a", root, pristine], check=True)
    environment = {}
    for word, rest in instructions((options.root / "packaging/Dockerfile").read_text()):
        if word in ("ARG", "ENV"):
            for pair in shlex.split(rest):
                name, _, value = pair.partition("=")
                environment[name] = value.replace("$PATH", environment.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))
            if options.find_links:
                environment["PIP_ARGS"] = "--no-index --find-links /mnt/links"
        elif word == "COPY":
            _, target = shlex.split(rest)
            (pristine / target.strip("/")).mkdir(parents=True, exist_ok=True)
            shutil.copy(options.wheel, pristine / target.strip("/"))
        elif word == "RUN":
            give_settings(pristine)  # packages bring certificates of their own
            status, said = inside(pristine, rest, environment)
            check(status == 0, f"Dockerfile: RUN {rest[:90]}", said)
            if status != 0:
                return
        elif word not in ("FROM", "WORKDIR"):
            check(False, f"Dockerfile: {word} is not known to this test")
    train = ("tessera-finetune-squad --model_config bloom-mini --tokenizer /mnt/source/examples/data/tokenizer --max_steps 2 --ranks 2 "
             "--train_file /mnt/source/examples/data/squad_sample.json --max_seq_length 64 --output_dir /tmp/run")
    status, said = inside(pristine, train, environment)
    check(status == 0, "the image trains two ranks", said)
    size = subprocess.run(["du", "-sm", pristine], stdout=subprocess.PIPE, text=True).stdout.split()[0]
    print(f"the image has {size} MiB")
    shutil.rmtree(pristine)


options.folder.mkdir(parents=True, exist_ok=True)
for name in options.suites.split(","):
    if name:
        try_wheel(name)
if not options.no_dockerfile:
    try_dockerfile()
print("bare roots: all as they should be" if failures == 0 else f"{failures} checks failed")
sys.exit(1 if failures else 0)
