# SPDX-License-Identifier: MIT
"""Each rule of docs_check.py must turn red on a page that breaks it, and stay green on one that does not; blocks run in the page's order."""
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
import cases
import docs_check

FENCE = "```"
# (text of docs/page.md, a piece of the expected message; None: the page is fine)
PAGES = [
    ("[a](other.md)\n", None),
    ("[a](gone.md)\n", "gone.md leads nowhere"),
    ("![a](gone.png)\n", "gone.png leads nowhere"),
    ("[![a](other.md)](gone.md)\n", "gone.md leads nowhere"),
    ('<img src="gone.svg">\n', "gone.svg leads nowhere"),
    ("[a]: gone.md\n", "gone.md leads nowhere"),
    ("[a](../../outside.md)\n", "leads nowhere"),
    ("[a](https://example.org/gone)\n", None),
    ("`[a](gone.md)`\n", None),
    (f"{FENCE}text\n[a](gone.md)\n{FENCE}\n", None),
    ("<!-- [a](gone.md) -->\n", None),
    ("[a](other.md#a-heading---with--code)\n", None),
    ("[a](other.md#given)\n", None),
    ("[a](other.md#a-heading-1)\n", None),
    ("[a](other.md#a-headin)\n", "no heading #a-headin"),
    ("# Here\n[a](#here)\n", None),
    ("[a](#there)\n", "no heading #there"),
    ("`tessera-train --steps 3`\n", None),
    ("`tessera-drain`\n", "no program tessera-drain"),
    ("`tessera-train --stepz`\n", "no flag --stepz"),
    ("`--planted`\n", None),
    ("`--nowhere`\n", "no flag --nowhere"),
    ("`lib/core/error.cpp`, `tessera/core/error.h`, `lib/core/*.cpp`, `lib/{core,core}/error.cpp`, `lib/NAME/x.h`\n", None),
    ("`lib/core/mirror.cpp`\n", "no lib/core/mirror.cpp"),
    ("`lib/{core,gone}/error.cpp`\n", "no lib/{core,gone}/error.cpp"),
    (f"{FENCE}bash\ntessera-train \\\n  --stepz 3\n{FENCE}\n", "page.md:2: there is no flag --stepz"),
    (f"{FENCE}bash\ntessera-train --steps 3  # --not a flag\n{FENCE}\n", None),
    (f"{FENCE}\ntessera-train --steps 3\n{FENCE}\n", "in a block of bash"),
    (f"{FENCE}text\ntessera-train: done\n{FENCE}\n", None),
    (f"<!-- needs: gpu, weights -->\n{FENCE}bash\ntessera-train\n{FENCE}\n", None),
    (f"<!-- needs: luck -->\n{FENCE}bash\ntessera-train\n{FENCE}\n", "needs: luck"),
    (f"<!-- not run: -->\n{FENCE}bash\ntessera-train\n{FENCE}\n", "the reason is missing"),
    (f"{FENCE}bash\ntessera-train\n", "never closed"),
    (f"<!-- from: scripts/run.sh -->\n{FENCE}cpp\n...\necho one\n\n  echo two\n{FENCE}\n", None),
    (f"<!-- from: scripts/run.sh -->\n{FENCE}cpp\necho two\necho one\n{FENCE}\n", "page.md:4: scripts/run.sh has no such line, or not here: echo one"),
    (f"<!-- from: scripts/gone.sh -->\n{FENCE}cpp\necho two\n{FENCE}\n", "scripts/gone.sh has no such line"),
    (f"<!-- needs: network -->\n{FENCE}bash\nscripts/plain.py a | tessera-train\n{FENCE}\n", "page.md:3: scripts/plain.py is not executable"),
    (f"{FENCE}bash\nA=1 scripts/run.sh\npython3 scripts/plain.py\n{FENCE}\n", None),
]


def tree(folder, text):
    root = pathlib.Path(folder)
    for path, content in {
        "docs/page.md": text,
        "docs/other.md": '# A heading - `with` & code\n## A heading\n## A heading\n<a id="given"></a>\n',
        "docs/reference/flags.md": "| `--steps` |\n",
        "examples/train/CMakeLists.txt": "tessera_program(tessera-train SOURCES main.cpp)\n",
        "lib/core/error.cpp": '// --planted\n',
        "include/tessera/core/error.h": "",
        "scripts/plain.py": "print()\n",
        "scripts/run.sh": "#!/bin/sh\necho one\necho two\n",
        "README.md": "# Title\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
        (root / path).chmod(0o755 if path.endswith(".sh") else 0o644)
    return root.resolve()


def found(text):
    with tempfile.TemporaryDirectory() as folder:
        return list(docs_check.links(tree(folder, text)))


def unlisted():
    """A page of measurements that the site's navigation lacks."""
    with tempfile.TemporaryDirectory() as folder:
        root = tree(folder, "# Page\n")
        (root / "benchmarks/results").mkdir(parents=True)
        (root / "benchmarks/results/README.md").write_text("# All\n")
        (root / "benchmarks/results/today.md").write_text("# Today\n")
        (root / "mkdocs.yml").write_text("site_name: a\nnav:\n  - Home: page.md\n"
                                         "  - Other: other.md\n  - Flags: reference/flags.md\n  - All: measurements/index.md\n")
        return list(docs_check.links(root))


def found_by_help():
    """A flag that the sources spell, but that the program's own help does not have."""
    with tempfile.TemporaryDirectory() as folder:
        root = tree(folder, "`tessera-train --steps`, `tessera-train --planted`\n")
        program = root / "bin/tessera-train"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\necho '  --steps  how many'\n")
        program.chmod(0o755)
        return list(docs_check.links(root, root / "bin"))


def ran(blocks, pages=("docs/page.md",), readme="# Title\n", more=()):
    """What --run says of a page in a clone whose scripts/build.sh makes one program."""
    with tempfile.TemporaryDirectory() as folder:
        root = tree(f"{folder}/src", "# Page\n" + blocks)
        (root / "README.md").write_text(readme)
        (root / "scripts").mkdir(exist_ok=True)
        (root / "scripts/build.sh").write_text("#!/bin/sh\nmkdir -p build/x/bin\nprintf '#!/bin/sh\\n' >build/x/bin/planted\nchmod +x build/x/bin/planted\n")
        (root / "scripts/build.sh").chmod(0o755)
        git = ["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@example.org"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
            subprocess.run([*git, *words], check=True)
        done = subprocess.run([sys.executable, "-B", docs_check.__file__, "--run", "--clone", f"{folder}/clone", *more, root, *pages],
                              capture_output=True, text=True, check=False)
        said = [line for line in done.stdout.splitlines() if "exit status" in line]
        return [] if done.returncode == 0 else said or [f"exit status {done.returncode}: {done.stdout}{done.stderr}"]


RUNS = [
    (f"{FENCE}bash\nplanted\n{FENCE}\n", None),
    (f"{FENCE}bash\nunplanted\n{FENCE}\n", "docs/page.md:3: exit status 127: unplanted"),
    (f"{FENCE}bash\nX=3\ntest -e README.md\n{FENCE}\ntext\n{FENCE}bash\ntest $X = 3\n{FENCE}\n", None),
    (f"{FENCE}bash\ntrue\n{FENCE}\ntext\n{FENCE}bash\ntrue\nfalse\ntrue\n{FENCE}\n", "docs/page.md:8: exit status 1: false"),
    (f"{FENCE}bash\nfalse | true\n{FENCE}\n", "docs/page.md:3: exit status 1"),
    (f"<!-- needs: gpu -->\n{FENCE}bash\nfalse\n{FENCE}\n{FENCE}text\nfalse\n{FENCE}\n", None),
    (f"- in a list:\n\n  {FENCE}bash\n  exit 4\n  {FENCE}\n", "exit status 4"),
]


def measured_badly():
    with tempfile.TemporaryDirectory() as folder:
        root = tree(folder, f"# Not counted\nOne `two words` three. Four five\nsix!\n\n- Seven eight\n- Nine.\n\n| not | counted |\n{FENCE}\nnor this\n{FENCE}\n")
        measured = docs_check.measure(docs_check.Page(root, root / "docs/page.md"))
        return [] if measured == (9, 4) else [f"9 words in 4 sentences were measured as {measured}"]


if __name__ == "__main__":
    planted = [(repr(text[:60]), found(text), expected) for text, expected in PAGES]
    failing = ran(f"{FENCE}bash\ntrue\n{FENCE}\n", ("README.md", "docs/page.md"), f"{FENCE}bash\nfalse\n{FENCE}\n")
    late = ran(f"{FENCE}bash\nsleep 20\n{FENCE}\n", more=("--seconds", "1"))
    planted += [("README fails", failing, "README.md:2: exit status 1: false"), ("a page takes too long", late, "after 1 s")]
    planted += [(f"run {text[:60]!r}", ran(text), expected) for text, expected in RUNS]
    sys.exit(cases.check([*planted, ("navigation", unlisted(), "does not list measurements/today.md"), ("the program's help", found_by_help(), "tessera-train has no flag --planted"), ("words", measured_badly(), None)]))
