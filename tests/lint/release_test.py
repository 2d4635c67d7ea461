# SPDX-License-Identifier: MIT
"""scripts/release.sh names each defect of a release, and tags a tree without one. Usage: release_test.py ROOT"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1]).absolute()
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_release_"))
tree = folder / "tree"
TAKEN = ("include", "lib", "backends", "cmake", "scripts", "python", "tests/lint")
tree.mkdir()
for name in TAKEN:  # what the script reads
    shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.cu", "*.cpp"))
for file in ROOT.iterdir():
    if file.is_file() and file.name != ".git":  # of a worktree, whose repository this is not
        shutil.copy(file, tree)
for name in ("examples", "benchmarks", "tests"):
    (tree / name).mkdir(exist_ok=True)


def git(*words):
    subprocess.run(["git", "-C", tree, "-c", "user.name=t", "-c", "user.email=t@example.org", *words], check=True, stdout=subprocess.DEVNULL)


def edit(name, pattern, text):
    path = tree / name
    new = re.sub(pattern, text, path.read_text(), count=1, flags=re.MULTILINE)
    assert new != path.read_text(), f"{name} has no {pattern}"
    path.write_text(new)


def release(*words):
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.org",
                   "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@example.org", "GIT_CONFIG_NOSYSTEM": "1"}
    run = subprocess.run([tree / "scripts/release.sh", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    return run.returncode, run.stdout


numbers = [re.search(rf"VERSION_{part} (\d+)", (tree / "include/tessera/core/version.h").read_text()).group(1) for part in ("MAJOR", "MINOR", "PATCH")]
version = ".".join(numbers)
assert not (tree / ".git").exists()
git("init", "--quiet", "--initial-branch=main")
(tree / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version}\n- All of it.\n")
git("add", "--all")
git("commit", "--quiet", "--message", "x")
failures = 0


def check(what, status, text, *words):
    global failures
    code, said = release(*words)
    if code != status or text not in said:
        failures += 1
        print(f"FAILED: {what}: exit {code}, expected {status} and '{text}':\n{said}")


check("a tree without a defect", 0, f"v{version} could be made", "--dry-run")
DEFECTS = (("CITATION.cff", r"^version: .*", "version: 9.9.9", "CITATION.cff is of version '9.9.9'"),
           ("CHANGELOG.md", rf"^## {re.escape(version)}", "## 9.9.9", f"no heading '## {version}'"),
           ("CHANGELOG.md", r"^## ", "## Unreleased\n- x\n\n## ", "entries under 'Unreleased'"),
           ("README.md", r"find_package\(tessera [0-9.]+", "find_package(tessera 9.9", "README.md asks for tessera 9.9"),
           ("NOTICE", r"^Highway", "Hig", "NOTICE does not name Highway"),
           ("NOTICE", r"^Unicode data", "Data", "NOTICE does not name the Unicode data"),
           ("cmake/TesseraFeatures.cmake", r"^find_package\(absl", "find_package(Zoltan)\nfind_package(absl", "the build looks for 'Zoltan'"),
           ("pyproject.toml", r'^dynamic = .*', 'version = "1"', "pyproject.toml says a version"),
           ("include/tessera/core/version.h", r"^// SPDX.*\n", "", "breaks rules"))
for name, pattern, text, says in DEFECTS:
    edit(name, pattern, text)
    check(f"{name}: {pattern}", 1, says, "--dry-run")
    git("checkout", "--quiet", ".")
(tree / "more").touch()
check("a file that is not committed", 1, "the tree is not clean", "--dry-run")
(tree / "more").unlink()
check("a release", 0, f"made the tag v{version}")
check("a second one", 1, f"the tag v{version} is there already")
shutil.rmtree(folder)
print(f"release.sh names {len(DEFECTS) + 2} defects" if failures == 0 else f"{failures} checks failed")
sys.exit(1 if failures else 0)
