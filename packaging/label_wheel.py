# SPDX-License-Identifier: MIT
"""Completes a wheel that scikit-build-core made: puts in what libtessera.so needs of this system, labels it, and checks it.

Usage: label_wheel.py WHEEL DESTINATION [--cuda BUILD_FOLDER]
Taken in: Abseil and Highway. Never taken in: LibTorch and NVIDIA's libraries, which torch's own packages bring, and what every
system has. The label is the oldest manylinux platform that has all versions of symbols that are asked for.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import auditwheel
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

LIMIT_MB = 40
TAKEN = re.compile(r"lib(absl_\w+|hwy)\.so")
OF_TORCH = re.compile(r"lib(c10|torch_cpu|gomp)\.so")
OF_SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)|ld-linux-x86-64)\.so")
OF_GPUS = re.compile(r"lib(c10_cuda|torch_cuda|cudart|cublasLt|nccl|cudnn|nvrtc)\.so")
TORCH = "$ORIGIN/{up}/torch/lib"
NVIDIA = ("cu13", "cudnn", "nccl")


class Elf:
    """What a file asks the loader for; needed is None where it is no ELF file."""

    def __init__(self, path):
        self.path, self.needed, self.runpath, self.versions = path, None, "", set()
        with open(path, "rb") as file:
            if file.read(4) != b"\x7fELF":
                return
            self.needed = []
            for section in ELFFile(file).iter_sections():
                if section.header.sh_type == "SHT_DYNAMIC":
                    for tag in section.iter_tags():
                        if tag.entry.d_tag == "DT_NEEDED":
                            self.needed.append(tag.needed)
                        elif tag.entry.d_tag in ("DT_RUNPATH", "DT_RPATH"):
                            self.runpath = getattr(tag, "runpath", None) or tag.rpath
                elif isinstance(section, GNUVerNeedSection):
                    for library, versions in section.iter_versions():
                        if not OF_TORCH.match(library.name) and not OF_GPUS.match(library.name):
                            self.versions |= {version.name for version in versions}


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def path_of(name):
    """Where this system's loader has a library."""
    for line in run("/sbin/ldconfig", "-p").splitlines():
        if line.split()[:1] == [name] and "x86-64" in line:
            return pathlib.Path(line.split()[-1])
    sys.exit(f"label_wheel: {name} was not found")


def take_in(library):
    """Copies what it needs of Abseil and Highway beside it, and lets them find each other; returns their names."""
    taken, waiting = {}, [library]
    while waiting:
        for name in Elf(waiting.pop()).needed:
            if TAKEN.match(name) and name not in taken:
                taken[name] = library.parent / name
                shutil.copy(path_of(name).resolve(), taken[name])
                taken[name].chmod(0o755)
                run("patchelf", "--set-rpath", "$ORIGIN", taken[name])
                waiting.append(taken[name])
    return sorted(taken)


def licences_of(names, folder):
    """The texts that Debian's packages have."""
    for package, prefix in (("libabsl-dev", "libabsl"), ("libhwy-dev", "libhwy")):
        text = pathlib.Path(f"/usr/share/doc/{package}/copyright")
        if any(name.startswith(prefix) for name in names) and text.exists():
            shutil.copy(text, folder / f"{package}.copyright")


def add_cuda(build, package):
    """libtessera.so with the GPUs' part, in a folder of its own."""
    folder = package / "lib/cuda"
    folder.mkdir()
    library = folder / next((package / "lib").glob("libtessera.so.*")).name
    shutil.copy(build / library.name, library)
    run("strip", "--strip-unneeded", library)
    places = [TORCH.format(up="../../.."), *(f"$ORIGIN/../../../nvidia/{part}/lib" for part in NVIDIA)]
    run("patchelf", "--set-rpath", ":".join(["$ORIGIN", "$ORIGIN/..", *places]), library)


def platform_for(versions):
    """The oldest manylinux policy that has all of these versions of glibc's and GCC's symbols."""
    file = pathlib.Path(auditwheel.__file__).parent / "policy/manylinux-policy.json"
    policies = [policy for policy in json.loads(file.read_text()) if re.fullmatch(r"manylinux_2_\d+", policy["name"])]
    for policy in sorted(policies, key=lambda policy: -policy["priority"]):
        known = {f"{prefix}_{number}" for prefix, numbers in policy["symbol_versions"]["x86_64"].items() for number in numbers}
        if not {version for version in versions if version.split("_")[0] in ("GLIBC", "GLIBCXX", "CXXABI", "GCC")} - known:
            return policy["name"] + "_x86_64"
    return "linux_x86_64"


def problems_of(elf, package):
    name = elf.path.relative_to(package.parent)
    gpus = elf.path.parent.name == "cuda"
    for needed in elf.needed:
        beside = (elf.path.parent / needed).exists() or (package / "lib" / needed).exists()
        if not (beside or OF_TORCH.match(needed) or OF_SYSTEM.match(needed) or (gpus and OF_GPUS.match(needed))):
            yield f"{name} needs {needed}, which is neither in the wheel, nor torch's, nor of every system"
    for folder in filter(None, elf.runpath.split(":")):
        if not folder.startswith("$ORIGIN"):
            yield f"{name} searches {folder}, a folder of the host that built it"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("destination", type=pathlib.Path)
    parser.add_argument("--cuda", type=pathlib.Path)
    options = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="tessera_wheel_"))
    run(sys.executable, "-m", "wheel", "unpack", "--dest", work / "tree", options.wheel)
    tree = next((work / "tree").iterdir())
    package, info = tree / "tessera", next(tree.glob("*.dist-info"))
    taken = take_in(next((package / "lib").glob("libtessera.so.*")))
    licences_of(taken, info / "licenses")
    if options.cuda:
        add_cuda(options.cuda, package)
    elves = [elf for elf in map(Elf, sorted(path for path in tree.rglob("*") if path.is_file())) if elf.needed is not None]
    problems = [problem for elf in elves for problem in problems_of(elf, package)]
    platform = platform_for(set().union(*(elf.versions for elf in elves)))
    if options.cuda:  # told apart by a local version
        metadata = info / "METADATA"
        name, version = re.fullmatch(r"(\w+)-(.*)\.dist-info", info.name).groups()
        metadata.write_text(metadata.read_text().replace(f"\nVersion: {version}\n", f"\nVersion: {version}+cu130\n", 1))
        info.rename(tree / f"{name}-{version}+cu130.dist-info")
    run(sys.executable, "-m", "wheel", "pack", "--dest-dir", work, tree)
    packed = next(work.glob("*.whl"))
    name = run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", platform, packed).strip().splitlines()[-1]
    options.destination.mkdir(exist_ok=True)
    wheel = options.destination / name
    shutil.copy(work / name, wheel)
    shutil.rmtree(work)

    megabytes = wheel.stat().st_size / 1e6
    newest = {prefix: max((tuple(map(int, re.findall(r"\d+", v))) for elf in elves for v in elf.versions if v.split("_")[0] == prefix), default=())
              for prefix in ("GLIBC", "GLIBCXX", "CXXABI")}
    print(f"{wheel}: {megabytes:.1f} MB; needs " + ", ".join(f"{prefix}_{'.'.join(map(str, number))}" for prefix, number in newest.items()))
    print(f"taken in: {', '.join(taken)}")
    if megabytes > LIMIT_MB:
        problems.append(f"it has {megabytes:.1f} MB; {LIMIT_MB} are the most")
    for problem in problems:
        print(f"label_wheel: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
