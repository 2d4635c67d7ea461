# SPDX-License-Identifier: MIT
"""scripts/mutate.py makes the mutants that it says, leaves comments, texts, includes and macros alone, and restores every file.

Usage: mutate_test.py ROOT. cmake and ctest are scripts of this test's own: nothing is compiled.
"""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "scripts"))
import mutate  # noqa: E402
import mutations  # noqa: E402

UNTOUCHED = r'''#include <a < b.h>
#define SMALLER(a, b) \
  if (a < b) run(a - b);
// if (a < b) run(a - b); Axis::kData
/* clear(); ReduceOp::kSum */
const char* text = "if (a < b) run(); Axis::kData";
const char* raw = R"x(if (a < b) run(); ")x";
template <typename T> std::vector<T> list(std::vector<int> a);
TESSERA_CASE(a < b, [] { clear(); });
void declared(int a);
std::vector<int> values(count);
Widget widget{a};
case OperationKind::kAllReduce:
for (const auto& value : values) total += value;
int negative = -value, shifted = a << b;
auto f = [](int a) -> int { return a; };
return -1;
'''
# (text, kind, every text that its mutants of this kind are)
CASES = [
    ("{ clear(slots); }", "call", ["{ {} }"]),
    ("{ if (a) comm_->all_reduce(t).wait(); }", "call", ["{ if (a) {} }"]),
    ("{ units[i].layout.drop(f(1), {2}); }", "call", ["{ {} }"]),
    ("{ check(a, \"it; was\"); }", "call", ["{ {} }"]),
    ("{ return clear(slots); }", "call", []),
    ("{ int a = clear(slots); }", "call", []),
    ("{ (void)clear(slots); }", "call", []),
    ("x = a - b;", "operands", ["x = b - a;"]),
    ("x = sum(a, 1) / n.size();", "operands", ["x = n.size() / sum(a, 1);"]),
    ("x = a < b[1];", "operands", ["x = b[1] < a;"]),
    ("x = a <= b;", "operands", ["x = b <= a;"]),
    ("x = a - a;", "operands", []),
    ("x = *a < b;", "operands", []),
    ("x = a < b;", "bound", ["x = a <= b;", "x = a < b - 1;"]),
    ("x = a <= b;", "bound", ["x = a < b;", "x = a <= b + 1;"]),
    ("x = a > b;", "bound", ["x = a >= b;", "x = a > b + 1;"]),
    ("x = a >= b;", "bound", ["x = a > b;", "x = a >= b - 1;"]),
    ("for (int i = 0; more(i); ++i) {", "bound", ["for (int i = 1; more(i); ++i) {"]),
    ("if (a && f(b)) {", "condition", ["if (!(a && f(b))) {"]),
    ("if (int a = f(); a == 2) {", "condition", ["if (int a = f(); !(a == 2)) {"]),
    ("if (auto* a = f()) {", "condition", []),
    ("while (a) {", "condition", []),
    ("mesh.axis(Axis::kData)", "axis", ["mesh.axis(Axis::kPipeline)", "mesh.axis(Axis::kTensor)"]),
    ("x = extents.data;", "axis", ["x = extents.pipeline;", "x = extents.tensor;"]),
    ("x = micro_batch.data;", "axis", []),
    ("comm.all_gather(a, b);", "axis", ["comm.reduce_scatter(a, b);", "comm.all_to_all(a, b);"]),
    ("all_reduce(t, ReduceOp::kSum);", "reduction", ["all_reduce(t, ReduceOp::kMax);", "all_reduce(t, ReduceOp::kMin);"]),
    ("at::sum(t);", "reduction", ["at::mean(t);", "at::amax(t);"]),
    ("x = \"a < b\" < c;", "bound", ["x = \"a < b\" <= c;", "x = \"a < b\" < c - 1;"]),
]
failures = []


def check(what, good, said=""):
    if not good:
        failures.append(what)
        print(f"FAILED: {what}: {said}")


def check_mutations():
    found = [(UNTOUCHED[m.begin:m.end], m.after) for m in mutations.mutants(UNTOUCHED)]
    check("text without anything to mutate", not found, found)
    for text, kind, expected in CASES:
        found = [mutant.apply(text) for mutant in mutations.mutants(text) if mutant.kind == kind]
        check(f"{kind} of {text}", sorted(found) == sorted(expected), found)


# A defect of `file` that is not `b <= a` is found; `clear` missing does not compile; "sleep" holds the build.
CMAKE = '''#!/bin/sh
[ ! -e sleep ] || sleep 60
grep -q 'clear();' lib/core/a.cpp
'''
CTEST = '''#!/bin/sh
echo "$@" >>asked
grep -q -e 'x = a <= b;' -e 'x = b <= a;' lib/core/a.cpp && grep -q 'if (c)' lib/core/a.cpp
'''
FILE = "// a <= b\nvoid f() {\n  clear();\n  x = a <= b;\n  if (c) x = 0;\n}\n"


def make_tree(folder):
    root = pathlib.Path(folder)
    for path, text in {"lib/core/a.cpp": FILE, "tests/unit/core/CMakeLists.txt": "tessera_test(test_core\n  SOURCES a.cpp)\n", "bin/cmake": CMAKE,
                       "bin/ctest": CTEST}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for name in ("cmake", "ctest"):
        (root / "bin" / name).chmod(0o755)
    git = ["git", "-C", folder, "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "x"], check=True)
    return root


def start(root, *words):
    environment = os.environ | {"PATH": f"{root}/bin:{os.environ['PATH']}"}
    command = [sys.executable, "-B", ROOT / "scripts/mutate.py", "--root", root, *words]
    return subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(root, *words):
    process = start(root, *words)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


def check_run(root):
    path, log = root / "lib/core/a.cpp", root / "build/mutate/log.jsonl"
    status, said = finished(root, "lib/core/a.cpp")
    check("a run", status == 0 and "3 killed, 1 survived, 1 not compiling" in said, said)
    check("the file after a run", path.read_text() == FILE)
    check("what is tested", "-R ^(test_core): " in (root / "asked").read_text(), (root / "asked").read_text())
    survivors = [row["after"] for row in map(json.loads, log.read_text().splitlines()) if row["result"] == "survived"]
    check("the survivor", survivors == ["x = b <= a;"], survivors)
    calls = (root / "asked").read_text()
    status, again = finished(root, "lib/core/a.cpp")
    check("a second call goes on where the first ended", again == said and (root / "asked").read_text() == calls, again)
    status, said = finished(root, "lib/core/a.cpp", "--least", "90")
    check("too few killed", status == 1, said)
    lists = [finished(root, "lib/core/a.cpp", "--list", "--limit", "3", "--seed", seed)[1] for seed in "1122"]
    check("a seed chooses the same ones", lists[0] == lists[1] and lists[2] == lists[3] and lists[0] != lists[2], lists)
    check("the limit", lists[0].count("\n") == 3, lists[0])


def check_since(root):
    check("nothing changed", finished(root, "--since", "HEAD", "--list") == (0, ""))
    (root / "lib/core/a.cpp").write_text(FILE + "// more\n")
    (root / "tests/a.cpp").write_text(FILE)
    status, said = finished(root, "--since", "HEAD", "--list")
    check("a changed file", status == 0 and said.count("lib/core/a.cpp:") == 5 and "tests/" not in said, said)
    (root / "lib/core/a.cpp").write_text(FILE)


def check_endings(root):
    path = root / "lib/core/a.cpp"
    for name in ("SIGINT", "SIGTERM", "SIGKILL"):
        process = start(root, "lib/core/a.cpp", "--restart")
        while path.read_text() == FILE and process.poll() is None:  # the baseline is over
            (root / "sleep").touch() if (root / "build/mutate/planted.json").exists() else time.sleep(0.001)
        (root / "sleep").touch()
        process.send_signal(getattr(signal, name))
        said, _ = process.communicate(timeout=60)
        (root / "sleep").unlink()
        if name == "SIGKILL":
            finished(root, "lib/core/a.cpp", "--list")
        else:
            check(f"the end by {name}", process.returncode == 130 and "the tree is as before" in said, said)
        check(f"the file after {name}", path.read_text() == FILE, path.read_text())


def check_lost_interrupt(root):
    """The handler's exception is lost when the signal comes while Python destroys an object."""
    with contextlib.suppress(KeyboardInterrupt):
        mutate.interrupt()
    judge = mutate.Judge(root, "release", 1, root / "judge.log")
    try:
        status = judge.call(["true"])
    except KeyboardInterrupt:
        status = "interrupted"
    check("a lost interrupt ends the next command", status == "interrupted", status)


def check_baseline(root):
    (root / "lib/core/a.cpp").write_text(FILE.replace("if (c)", "if (d)"))
    status, said = finished(root, "lib/core/a.cpp")
    check("tests that fail without a mutant", status == 1 and "do not pass without a mutant" in said, said)


check_mutations()
temporary = tempfile.mkdtemp(prefix="tessera_mutate_")
tree = make_tree(temporary)
for step in (check_run, check_since, check_endings, check_lost_interrupt, check_baseline):
    step(tree)
shutil.rmtree(temporary)
print(f"{len(failures)} checks failed" if failures else f"mutants as expected in {len(CASES)} cases, and files restored")
sys.exit(1 if failures else 0)
