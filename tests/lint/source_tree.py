# SPDX-License-Identifier: MIT
"""Checks the rules of the source tree: who may include whom, where CUDA, NCCL and MPI may be known, file sizes.

Usage: source_tree.py ROOT. Prints one line per violation and exits 1 when there is any.
"""
import pathlib
import re
import sys

COMM = {"comm", "comm/control", "comm/local", "comm/mpi", "comm/nccl", "comm/tcp", "comm/launch", "core"}
BACKENDS = COMM | {"ops", "model", "sharding", "optim", "checkpoint", "backends"}
SETTINGS = BACKENDS | {"data", "metrics", "settings"}
RUN = SETTINGS | {"models", "program", "generation", "train", "plan", "interop", "run"}
TESTING = BACKENDS | {"plan", "testing"}
LIBRARY = RUN | TESTING | {"compare", "report", "tools"}
# Folder -> folders it may include beside itself. Nothing may include anything to its left:
# examples, benchmarks, python, tests -> {compare, report, tools} -> run -> interop -> settings -> {train, generation, plan} -> backends
#   -> {sharding, optim, checkpoint} -> model -> comm -> core; in comm launch -> {local, mpi, nccl, tcp} -> comm itself -> control.
ALLOWED = {
    "core": set(),
    "comm/control": {"core"},
    "comm": {"comm/control", "core"},
    **{f"comm/{transport}": {"comm", "comm/control", "core"} for transport in ("local", "mpi", "nccl", "tcp")},
    "comm/launch": COMM,
    "ops": {"core"},
    "data": {"core"},
    "metrics": {"core"},
    "model": COMM | {"ops"},
    "models": {"model", "ops", "checkpoint", "core"},
    "program": {"model", "models", "ops", "checkpoint", "core"},
    "sharding": COMM | {"ops", "model"},
    "optim": COMM | {"ops", "model"},
    "checkpoint": COMM | {"model", "ops"},
    "backends": BACKENDS,
    "generation": BACKENDS,
    "train": BACKENDS | {"data", "metrics"},
    "plan": BACKENDS,
    "settings": SETTINGS,
    "interop": SETTINGS | {"models"},
    "run": RUN,
    "report": {"settings", "metrics", "core"},
    "compare": RUN | {"report"},
    "tools": RUN,
    "testing": BACKENDS | {"plan"},
    "tessera.h": RUN - {"settings", "interop", "run"},
    "examples": LIBRARY | {"tessera.h"},
    "benchmarks": RUN,
    "python": RUN,
}
# The same of tests, which may include tests/support, too.
UNIT_TESTS = {
    "backends": {"generation", "models", "testing", "train"},
    "comm": {"tests/conformance"},
    "data": {"tools"},
    "models": {"data", "testing", "tests/unit/ops"},
    "plan": {"examples", "generation", "models", "testing"},
    "testing": {"models", "examples"},
    "train": {"testing"},
}
TESTS = {
    **{f"unit/{folder}": ALLOWED[folder] | {folder} | UNIT_TESTS.get(folder, set()) for folder in LIBRARY if "/" not in folder},
    "unit/comm": COMM | UNIT_TESTS["comm"],
    "support": RUN | TESTING,
    "channel": COMM,
    "conformance": COMM,
    "failures": COMM,
    "mpi": COMM,
    "readers": {"data", "core"},
    "fuzz": RUN | TESTING,
    "parity": RUN | TESTING | {"tools"},
    "gpu": RUN | TESTING | {"benchmarks", "tests/unit/models", "tests/unit/ops", "tests/unit/plan"},
    "programs": LIBRARY | {"benchmarks"},
    "package": RUN | TESTING | {"tessera.h"},
}
ALLOWED |= {f"tests/{folder}": allowed | {"tests/support"} for folder, allowed in TESTS.items()}
# Of comm's public headers; all others belong to comm itself.
ROOMS = {"bootstrap.h": "comm/launch", "launch.h": "comm/launch", "local.h": "comm/local", "control_channel.h": "comm/control"}
ONLY_PUBLIC = re.compile(r"^(include/|examples/quickstart/|examples/custom_strategy/|examples/dry_step/|examples/loops/|tests/package/)")
OWN_PROJECTS = ("examples/custom_strategy/", "examples/dry_step/", "examples/loops/", "tests/package/strangers/")
SOURCE_FOLDERS = ("lib", "backends", "examples", "benchmarks", "python", "tests")
SOURCES = {".h", ".hpp", ".cpp", ".cu", ".cuh"}
MAX_LINES = 400  # without the line of the licence
LICENCE = "SPDX-License-Identifier: MIT"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*(CUDA|NCCL|MPI)", re.IGNORECASE)
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|cub/|nccl|c10/cuda/|ATen/cuda/|torch/csrc/cuda)")
KNOWS_CUDA = re.compile(r"^lib/(ops/cuda/|comm/nccl/|core/device_cuda)|^(tests|benchmarks)/.*_cuda\.")
KNOWS_NCCL = re.compile(r"^lib/comm/nccl/|^tests/")
QUIET_TAG = re.compile(r'"[^"]*\[(\.|!hide|!mayfail)')  # Catch2 cases that are not run, or may fail
# Numbers and dates that follow the locale and the time zone of the host program.
OF_LIBRARY = re.compile(r"^(lib|include|backends|python)/")
FOLLOWS_HOST = [
    (re.compile(r"\b(strto(d|f|ld)|sto(d|f|ld)|atof|v?[sf]?scanf)\s*\("), "reads numbers as the host's locale writes them: parse_number() of lib/core/number_text.h"),
    (re.compile(r'\bv?s?n?f?printf\s*\([^;"]*"([^"\\]|\\.)*%[-+ #0-9.*]*l?[aefgAEFG]'), "writes numbers as the host's locale does: printed() of lib/core/number_text.h"),
    (re.compile(r"\bo?stringstream\s+\w+[^;]*;(?!\s*\w+\.imbue\()"), "writes numbers as the host's locale does: concat(), or imbue(std::locale::classic()) first"),
    (re.compile(r"\b(setlocale|(std::)?locale::global|put_time|get_time)\s*\("), "depends on the host's locale, or changes it"),
    (re.compile(r'\b(localtime(_r)?\s*\(|strftime\s*\((?![^;]*"%F %T UTC"))'), "follows the host's time zone or locale: lib/data/jinja/date.h")]
CLOCK_OF_LOG = "lib/core/log.cpp"  # shows the hour of the place
TWO_SOURCES = re.compile(r"(?<![\w*])[\w./]+\.(cpp|cu)\s+[\w./]+\.(cpp|cu)\b")
KNOWS_MPI = re.compile(r"^lib/comm/(mpi|nccl)/|^tests/")


def folder_of(path):
    """The folder or room of comm that a file of the tree belongs to."""
    parts = path.split("/")
    if parts[:2] == ["include", "tessera"]:
        parts = parts[1:]
    if parts[0] == "tessera" and len(parts) == 2:
        return parts[1]
    if parts[0] in ("tessera", "lib"):
        if parts[1] != "comm":
            return parts[1]
        return ROOMS.get(parts[2], "comm") if parts[0] == "tessera" else "/".join(parts[1:-1])
    if parts[0] == "tests":
        return "/".join(parts[:3] if parts[1] == "unit" else parts[:2])
    return parts[0]


def included_folder(name):
    return folder_of(name) if name.split("/")[0] in (*SOURCE_FOLDERS, "tessera") else None


def check_include(path, name, quoted, public):
    folder, target = folder_of(path), included_folder(name)
    if folder not in ALLOWED:
        yield f"folder '{folder}' is not in the include order of tests/lint/source_tree.py"
    elif target is not None and target != folder and target not in ALLOWED[folder]:
        yield f"{folder} may not include {target} ({name})"
    elif target is not None and ONLY_PUBLIC.match(path) and not name.startswith("tessera/"):
        yield f"an installed header, and what users start from, includes public headers only, not {name}"
    elif target is None and quoted and not path.startswith(OWN_PROJECTS):
        yield f"{name} is no path from the top of the tree"
    if name in ("torch/torch.h", "torch/extension.h") and public:
        yield f"public headers include ATen-level headers, not <{name}>"
    if path.endswith((".cu", ".cuh")) and re.match(r"^(ATen|torch|c10)/", name):
        yield f"CUDA sources take raw pointers, sizes and a stream; they include no <{name}>"
    if CUDA_HEADER.match(name) and not KNOWS_CUDA.search(path):
        yield f"only lib/ops/cuda, lib/comm/nccl, lib/core/device_cuda* and *_cuda.* of tests may include <{name}>"
    if name == "nccl.h" and not KNOWS_NCCL.search(path):
        yield "only lib/comm/nccl may include <nccl.h>"
    if name == "mpi.h" and not KNOWS_MPI.search(path):
        yield "only lib/comm/mpi and lib/comm/nccl may include <mpi.h>"


def check_file(root, path):
    """Yields (line number, message) for one file; path is relative to root, with slashes."""
    lines = (root / path).read_text(encoding="utf-8", errors="replace").splitlines()
    public = path.startswith("include/")
    count = len(lines) - any(LICENCE in line for line in lines[:2])
    if count > MAX_LINES:
        yield len(lines), f"{count} lines; {MAX_LINES} is the most, split the file by concept"
    if path.endswith((".h", ".hpp", ".cuh")) and "#pragma once" not in lines:
        yield 1, "a header needs #pragma once"
    if OF_LIBRARY.match(path) and path != CLOCK_OF_LOG:
        text = "\n".join(line.split("//")[0] for line in lines)
        for pattern, message in FOLLOWS_HOST:
            for match in pattern.finditer(text):
                yield text.count("\n", 0, match.start()) + 1, f"{match[0].split('(')[0].strip()} {message}"
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            for message in check_include(path, match.group(2), match.group(1) == '"', public):
                yield number, message
        if path.startswith("tests/") and QUIET_TAG.search(line):
            yield number, "no hidden test cases, and none that may fail"
        if public and CONDITION.match(line):
            yield number, "no #if on CUDA, NCCL or MPI in public headers"


def check_build_file(root, path):
    """Yields (line number, message): tessera may be a part of another project, whose folders these are; lists of sources stand one a line."""
    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
        match = re.search(r"\bCMAKE_(SOURCE|BINARY)_DIR\b", line)
        if match:
            yield number, f"PROJECT_{match.group(1)}_DIR, not {match.group()}: the project may be part of another"
        if TWO_SOURCES.search(line) and not line.lstrip().startswith(("#", "set_source_files_properties(")):
            yield number, "sources stand one a line"


def build_files(root):
    yield root / "CMakeLists.txt"
    for top in ("cmake", *SOURCE_FOLDERS):
        for file in sorted((root / top).rglob("*")):
            if file.name == "CMakeLists.txt" or file.name.endswith((".cmake", ".cmake.in")):
                yield file


def source_files(root):
    """Paths relative to root, with slashes."""
    for top in ("include", *SOURCE_FOLDERS):
        for file in sorted((root / top).rglob("*")):
            if file.suffix in SOURCES and file.is_file():
                yield file.relative_to(root).as_posix()


def violations(root):
    for file in build_files(root):
        path = file.relative_to(root).as_posix()
        if file.is_file() and not path.startswith("tests/package/client/"):  # a project of its own
            for number, message in check_build_file(root, path):
                yield f"{path}:{number}: {message}"
    for path in source_files(root):
        for number, message in check_file(root, path):
            yield f"{path}:{number}: {message}"


def unlicensed(root):
    """The same of files of code and of scripts that do not say their licence in their first two lines."""
    scripts = [file for top in ("scripts", *SOURCE_FOLDERS) for file in sorted((root / top).rglob("*")) if file.suffix in (".py", ".sh", ".sbatch")]
    for file in [*(root / path for path in source_files(root)), *build_files(root), *scripts]:
        if file.is_file() and not any(LICENCE in line for line in file.read_text(encoding="utf-8", errors="replace").splitlines()[:2]):
            yield f"{file.relative_to(root).as_posix()}:1: the first line of a file (the second one behind #!) is: {LICENCE}"


def main():
    root = pathlib.Path(sys.argv[1])
    found = [*violations(root), *unlicensed(root)]
    print("\n".join(found) if found else "the source tree keeps its rules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
