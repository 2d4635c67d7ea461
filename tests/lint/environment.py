# SPDX-License-Identifier: MIT
"""docs/reference/environment.md has every environment variable that the code, the scripts and the build read.

Usage: environment.py ROOT. Prints one line per variable that is missing, or that is there and nobody reads, and exits 1 when there is any.
"""
import pathlib
import re
import sys

PAGE = "docs/reference/environment.md"
NAME = r"[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*"
# What names a variable where it is read. In these C++ files, which hand names on, every literal in capitals is one.
TABLES = {"lib/comm/launch/launcher.cpp", "lib/run/child_process.cpp", "lib/tools/env/environment.cpp", "lib/interop/hub_cache.cpp"}
CAPITALS = re.compile(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]*)*)"')
CPP = re.compile(rf'(?:getenv|setenv|environment|environment_?\[|variables\.(?:contains|find|has|number|text))\(?\s*\(?"({NAME})"')
PYTHON = re.compile(rf'environ(?:\.get|\.setdefault|\.pop)?[\[(]\s*["\']({NAME})["\']')
SHELL = re.compile(r"\$\{?(TESSERA_[A-Z_]+|Torch_[A-Z]+|CMAKE_PREFIX_PATH)")
CMAKE = re.compile(rf"\$ENV\{{({NAME})\}}")
TOPS = ("lib", "backends", "include", "examples", "python", "benchmarks", "scripts", "cmake", "tests", ".ci")
RULES = {".cpp": CPP, ".h": CPP, ".hpp": CPP, ".cu": CPP, ".py": PYTHON, ".sh": SHELL, ".sbatch": SHELL, ".cmake": CMAKE, ".txt": CMAKE}
NOT_VARIABLES = {"CALLS", "LOCPATH", "NO_KEY", "SECRET", "TZ"}  # tests' own; a word in names


def read_in(root: pathlib.Path) -> dict[str, str]:
    """Variable -> the first file that reads it. One that ends in _ stands for all that begin so."""
    found = {}
    files = [file for top in TOPS for file in sorted((root / top).rglob("*")) if file.is_file()]
    for file in [*files, root / "CMakeLists.txt"]:
        path = file.relative_to(root).as_posix()
        rule = RULES.get(file.suffix)
        if rule is None or not file.exists() or path in ("tests/lint/environment.py", "tests/lint/environment_test.py"):
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        for name in rule.findall(text) + (CAPITALS.findall(text) if path in TABLES else []):
            if name not in NOT_VARIABLES:
                found.setdefault(name, path)
    return found


def problems(root: pathlib.Path) -> list[str]:
    words = re.findall(r"`([^`]+)`", (root / PAGE).read_text(encoding="utf-8"))
    listed = {word for word in words if re.fullmatch(NAME, word)}
    prefixes = tuple(word[:-1] for word in words if re.fullmatch(r"[A-Z_]+\*", word))
    found = read_in(root)

    def said(name: str) -> bool:
        if name in listed or name in prefixes:
            return True
        return any(prefix.startswith(name) for prefix in prefixes) if name.endswith("_") else False

    missing = [f"{path} reads {name}, which {PAGE} lacks" for name, path in found.items() if not said(name)]
    stale = [f"{PAGE} has {name}, which nothing reads" for name in sorted(listed) if name.startswith("TESSERA_") and name not in found]
    return missing + stale


if __name__ == "__main__":
    complaints = problems(pathlib.Path(sys.argv[1]))
    print("\n".join(complaints) or f"{PAGE} has every variable")
    sys.exit(1 if complaints else 0)
