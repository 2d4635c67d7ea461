"""Checks the rules of the source tree: who may include whom, where CUDA, NCCL and MPI may be known, file sizes.

Usage: source_tree.py ROOT. Prints one line per violation and exits 1 when there is any.
"""
import pathlib
import re
import sys

LEVEL = {"sharding", "model", "optim", "checkpoint", "ops", "comm", "core"}
RUN = LEVEL | {"backends", "data", "metrics", "models", "generation", "train", "plan", "settings", "interop", "run"}
# Folder -> folders it may include. Nothing may include anything to its left:
# examples, benchmarks, tests -> {compare, report, tools} -> run -> interop -> settings -> {train, generation, plan} -> backends
#   -> {sharding, model, optim, checkpoint} -> comm -> core.
ALLOWED = {
    "core": {"core"},
    "comm": {"comm", "core"},
    "ops": {"ops", "core"},
    "data": {"data", "core"},
    "metrics": {"metrics", "core"},
    "sharding": LEVEL,
    "model": LEVEL,
    "optim": LEVEL,
    "checkpoint": LEVEL,
    "models": {"models", "model", "ops", "checkpoint", "core"},
    "backends": LEVEL | {"backends"},
    "generation": LEVEL | {"backends", "generation"},
    "train": LEVEL | {"backends", "data", "metrics", "train"},
    "plan": LEVEL | {"backends", "plan"},
    "settings": LEVEL | {"backends", "data", "metrics", "settings"},
    "interop": LEVEL | {"backends", "data", "metrics", "models", "settings", "interop"},
    "run": RUN,
    "report": {"report", "settings", "metrics", "core"},
    "compare": RUN | {"compare"},
    "tools": RUN | {"tools"},
    "testing": LEVEL | {"backends", "testing"},
}
SOURCES = {".h", ".hpp", ".cpp", ".cu", ".cuh"}
MAX_LINES = 400
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*(CUDA|NCCL|MPI)", re.IGNORECASE)
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|cub/|nccl|c10/cuda/|ATen/cuda/|torch/csrc/cuda)")
KNOWS_CUDA = re.compile(r"^lib/(ops/cuda/|comm/nccl/|core/device_cuda)|^(tests|benchmarks)/.*_cuda\.")
KNOWS_NCCL = re.compile(r"^lib/comm/nccl/|^tests/")
QUIET_TAG = re.compile(r'"[^"]*\[(\.|!hide|!mayfail)')  # Catch2 cases that are not run, or may fail
KNOWS_MPI = re.compile(r"^lib/comm/(mpi|nccl)/|^tests/")


def folder_of(path):
    """The house folder a file belongs to, or None for programs and tests, which may include everything."""
    parts = path.split("/")
    if parts[0] == "backends":
        return "backends"
    if parts[0] == "lib" and len(parts) > 2:
        return parts[1]
    if parts[:2] == ["include", "tessera"] and len(parts) > 3:
        return parts[2]
    return None


def included_folder(name):
    parts = name.split("/")
    if parts[0] == "tessera" and len(parts) > 2:
        return parts[1]
    if parts[0] == "lib" and len(parts) > 2:
        return parts[1]
    return parts[0] if parts[0] in ("backends", "examples", "benchmarks", "tests") else None


def check_include(path, name, public):
    folder, target = folder_of(path), included_folder(name)
    if folder is not None and target is not None:
        if folder not in ALLOWED:
            yield f"folder '{folder}' is not in the include order of tests/lint/source_tree.py"
        elif target not in ALLOWED[folder]:
            yield f"{folder} may not include {target} ({name})"
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
    if len(lines) > MAX_LINES:
        yield len(lines), f"{len(lines)} lines; {MAX_LINES} is the most, split the file by concept"
    if path.endswith((".h", ".hpp", ".cuh")) and "#pragma once" not in lines:
        yield 1, "a header needs #pragma once"
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            for message in check_include(path, match.group(2), public):
                yield number, message
        if path.startswith("tests/") and QUIET_TAG.search(line):
            yield number, "no hidden test cases, and none that may fail"
        if public and CONDITION.match(line):
            yield number, "no #if on CUDA, NCCL or MPI in public headers"


def check_build_file(root, path):
    """Yields (line number, message): tessera may be a part of another project, whose folders these are."""
    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
        match = re.search(r"\bCMAKE_(SOURCE|BINARY)_DIR\b", line)
        if match:
            yield number, f"PROJECT_{match.group(1)}_DIR, not {match.group()}: the project may be part of another"


def build_files(root):
    yield root / "CMakeLists.txt"
    for top in ("cmake", "lib", "backends", "examples", "benchmarks", "tests"):
        for file in sorted((root / top).rglob("*")):
            if file.name == "CMakeLists.txt" or file.name.endswith((".cmake", ".cmake.in")):
                yield file


def violations(root):
    for file in build_files(root):
        path = file.relative_to(root).as_posix()
        if file.is_file() and not path.startswith("tests/package/client/"):  # a project of its own
            for number, message in check_build_file(root, path):
                yield f"{path}:{number}: {message}"
    for top in ("include", "lib", "backends", "examples", "benchmarks", "tests"):
        for file in sorted((root / top).rglob("*")):
            path = file.relative_to(root).as_posix()
            if file.suffix in SOURCES and file.is_file():
                for number, message in check_file(root, path):
                    yield f"{path}:{number}: {message}"


def main():
    root = pathlib.Path(sys.argv[1])
    found = list(violations(root))
    print("\n".join(found) if found else "the source tree keeps its rules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
