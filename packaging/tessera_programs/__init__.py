# SPDX-License-Identifier: MIT
"""The programs of a wheel: each function replaces this process by one, so that signals, exit codes and ranks are the program's own.

A package beside `tessera`, so that a program starts without loading the Python module.
"""
import functools
import glob
import importlib.util
import os
import sys

NAMES = ("tessera-checkpoint", "tessera-compare", "tessera-env", "tessera-finetune-causal", "tessera-finetune-chat",
         "tessera-finetune-classification", "tessera-finetune-squad", "tessera-generate", "tessera-launch", "tessera-lint-ds", "tessera-plan",
         "tessera-report", "tessera-tokenize")
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tessera")


def libtorch():
    """tessera/_libtorch.py, without tessera/__init__.py."""
    spec = importlib.util.spec_from_file_location("_tessera_libtorch", os.path.join(PACKAGE, "_libtorch.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name):
    checks = libtorch()
    torch = checks.folder_of_torch()
    if problem := checks.why_not(torch):
        print(f"{name}: {problem}", file=sys.stderr)
        sys.exit(2)
    folders = [folder for folder in [checks.folder_for_gpus()] if folder]
    if os.path.realpath(os.path.dirname(torch)) != os.path.realpath(os.path.dirname(PACKAGE)):
        # torch in another folder of packages, with NVIDIA's libraries beside it
        folders += [os.path.join(torch, "lib"), *sorted(glob.glob(os.path.join(os.path.dirname(torch), "nvidia", "*", "lib")))]
    if folders:
        before = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = ":".join(folders + ([before] if before else []))
    # torchrun lies beside this interpreter, also where its environment is not active.
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
    program = os.path.join(PACKAGE, "bin", name)
    os.execv(program, [program, *sys.argv[1:]])


for _name in NAMES:
    globals()[_name.replace("-", "_")] = functools.partial(run, _name)
