#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the pages: README.md, CONTRIBUTING.md and every .md below docs/.

docs_check.py --links [ROOT] [--bin BIN]    links, anchors, programs, flags and paths that lead nowhere; marks of shell blocks; the site's navigation
docs_check.py --run [ROOT] [PAGE...]        runs the shell blocks of each page in a fresh clone (scripts/docs_check.sh)
docs_check.py --count [ROOT]                words and mean sentence length of each page

A fenced block of bash runs as it stands in the root of a clone whose programs are on PATH, unless the line before it is one of
  <!-- needs: gpu -->  (weights, network, slurm, hosts; several with commas)      <!-- not run: reason -->
A block below <!-- from: FILE --> quotes lines of a file, in its order; "..." and "// ..." stand for lines left out.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

from program_help import help_of
from site_pages import pages_without_navigation

NEEDS = {"gpu", "weights", "network", "slurm", "hosts"}
SHELLS = {"bash", "sh", "shell"}
GENERATED = re.compile(r"docs/(studies/(?!README)|reference/(flags|programs)\.md|migrate/hf-trainer\.md)")
# Pages of measured figures name the command of each figure; nobody types these in.
RECORDS = re.compile(r"docs/(studies|results)/")
FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*([\w+-]*)")
MARK = re.compile(r"^\s*<!--\s*(needs|not run|from):\s*(.*?)\s*-->\s*$")
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^\s*\[[^\]]+\]:\s+<?(\S+?)>?\s*$")
HTML_LINK = re.compile(r"<(?:img|a|source)\b[^>]*?\b(?:src|href|srcset)=\"([^\"]+)\"")
PROGRAM = re.compile(r"(?<![\w/.-])(tessera-[a-z_]+(?:-[a-z_]+)*|bench_[a-z_]+)(?![\w.*-])")
FLAG = re.compile(r"(?<![\w-])--([A-Za-z][\w-]*)")
PATH = re.compile(r"(?<![\w/.<~$-])((?:docs|lib|include|backends|examples|benchmarks|tests|scripts|cmake|tessera)/[\w./*{},+-]*[\w*}/])")
TOPS = ("lib", "include", "backends", "examples", "benchmarks", "tests", "scripts", "cmake", "python")
# Flags of other people's programs, in text.
FOREIGN = {"nv", "ipc", "ulimit", "shm-size", "gpus", "network", "multi_gpu", "no_python", "na-prob-file", "bind-to", "standalone", "no-python",
           "build-arg", "rm", "enable-lora", "lora-modules", "served-model-name",
           "nnodes", "container-image", "container-mounts", "container-workdir", "cleanenv"}
DISTRIBUTION = "tessera-train"  # of the wheel
SOURCES = {".h", ".hpp", ".cpp", ".cu", ".py", ".sh", ".sbatch", ".cmake", ".txt", ".json"}


def pages(root):
    found = [root / name for name in ("README.md", "CONTRIBUTING.md") if (root / name).exists()]
    return found + sorted((root / "docs").rglob("*.md"))


class Page:
    """A page in lines: prose (code, comments and fences are blanked), and its fenced blocks."""

    def __init__(self, root, file):
        self.name = file.relative_to(root).as_posix()
        self.file = file
        self.lines = file.read_text(encoding="utf-8").splitlines()
        self.prose, self.blocks = list(self.lines), []
        fence, block = None, None
        for at, line in enumerate(self.lines):
            match = FENCE.match(line)
            if fence is None and match:
                fence, mark = match.group(2), MARK.match(self.lines[at - 1]) if at else None
                block = {"line": at + 1, "language": match.group(3), "indent": len(match.group(1)), "lines": [], "mark": mark and mark.groups()}
            elif fence is not None and match and match.group(2).startswith(fence) and not match.group(3):
                self.blocks.append(block)
                fence = None
            elif fence is not None:
                block["lines"].append(line[block["indent"]:])
            else:
                continue
            self.prose[at] = ""
        if fence is not None:
            self.blocks.append({**block, "mark": ("open", "")})
        text = "\n".join(self.prose)
        text = re.sub(r"<!--.*?-->", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)
        self.prose = text.split("\n")

    def shell_blocks(self):
        return [block for block in self.blocks if block["language"] in SHELLS]

    def anchors(self):
        """As GitHub and the site make them of headings, and those that are given."""
        found, counts = set(), {}
        for line in self.prose:
            match = re.match(r"^\s{0,3}#{1,6}\s+(.*?)\s*#*\s*$", line)
            found.update(re.findall(r"(?:\bid|\bname)=\"([^\"]+)\"", line))
            if not match:
                continue
            text = match.group(1)
            given = re.search(r"\{[^}]*#([\w-]+)[^}]*\}$", text)
            if given:
                found.add(given.group(1))
                text = text[:given.start()].rstrip()
            text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.add(slug if slug not in counts else f"{slug}-{counts[slug]}")
            counts[slug] = counts.get(slug, 0) + 1
        return found


def without_code(line):
    return re.sub(r"(`+).+?\1", lambda m: " " * len(m.group()), line)


def inline_code(line):
    return [m.group(2) for m in re.finditer(r"(`+)(.+?)\1", line)]


def dead_links(root, page, anchors_of):
    for at, line in enumerate(page.prose, 1):
        line = without_code(line)
        reference = REFERENCE.match(line)
        for target in [*LINK.findall(line), *HTML_LINK.findall(line), *([reference.group(1)] if reference else [])]:
            if re.match(r"^[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.file.parent / path).resolve() if path else page.file
            if not file.exists() or (root.resolve() not in file.parents and file != page.file):
                # The site's own API pages are made by Doxygen.
                if not re.match(r"^(\.\./)*api/", path):
                    yield at, f"the link {target} leads nowhere"
            elif anchor and file.suffix == ".md" and anchor not in anchors_of(file):
                yield at, f"{target}: there is no heading #{anchor}"


def source_text(root):
    for top in TOPS:
        for file in (root / top).rglob("*"):
            if file.suffix in SOURCES and file.is_file():
                yield file, file.read_text(encoding="utf-8", errors="replace")


def known_names(root):
    """Programs that CMake builds, and flags: of the page of flags, and whatever the sources spell as one or as a name in quotes."""
    programs, flags = set(), set()
    for file, text in source_text(root):
        if file.name == "CMakeLists.txt":
            programs.update(re.findall(r"\btessera_(?:program|test|benchmark)\((\S+)", text))
            programs.update(re.findall(r"\badd_executable\((\S+)", text))
            programs.update(re.findall(r"\b(bench_\w+)", text))
        flags.update(FLAG.findall(text))
        flags.update(re.findall(r"\"([a-z]\w*)\"", text))
    table = root / "docs/reference/flags.md"
    if table.exists():
        flags.update(FLAG.findall(table.read_text(encoding="utf-8")))
    return programs, flags


def helps(bin_folder, programs):
    """Program -> the flags that its help names."""
    known = {}
    for program in sorted(programs):
        if program.startswith("tessera-") and (bin_folder / program).exists():
            known[program] = set(FLAG.findall(help_of(bin_folder / program)))
    return known


def path_exists(root, path):
    if any(part.isupper() or "<" in part for part in re.split(r"[/.]", path)):
        return True  # a placeholder
    if path.startswith("tessera/"):
        path = "include/" + path
    braces = re.search(r"\{([^{}]*)\}", path)
    if braces:
        return all(path_exists(root, path[:braces.start()] + part + path[braces.end():]) for part in braces.group(1).split(","))
    return any(root.glob(path.rstrip("/"))) if "*" in path else (root / path).exists()


def dead_names(root, page, programs, flags, exact):
    def check(text, at):
        here = [name for name in PROGRAM.findall(text)]
        for name in here:
            if name not in programs and name != DISTRIBUTION:
                yield at, f"there is no program {name}"
        for path in PATH.findall(text):
            if not re.match(r"lib/(cmake|pkgconfig|lib\w+\.so)", path) and not path_exists(root, path):
                yield at, f"there is no {path}"
        # The flags of a command of ours alone are looked up in its help; others may be any program's.
        allowed = exact.get(here[-1]) if here and not re.search(r"[|;&]", text) else None
        words = text[text.rfind(here[-1]):] if allowed else text
        for flag in FLAG.findall(words):
            if flag not in flags and not (allowed and flag in allowed):
                yield at, f"there is no flag --{flag}"
            elif allowed and flag not in allowed and here[-1] not in ("tessera-launch", "tessera-compare"):
                yield at, f"{here[-1]} has no flag --{flag}"

    for at, line in enumerate(page.prose, 1):
        for code in inline_code(line):
            yield from check(code, at)
    for block in page.shell_blocks():
        text, begin = "", block["line"]
        for number, line in enumerate(block["lines"], block["line"] + 1):
            begin = begin if text else number
            text += re.sub(r"(^|\s)#.*", "", line)
            if text.endswith("\\"):
                text = text[:-1]
                continue
            if not re.match(r"\s*(pip|cmake|git|docker|apptainer|apt-get|hf|curl|python3? -m)\b", text):
                yield from check(text, begin)
            text = ""


def scripts_that_do_not_start(root, page):
    """Scripts that a block calls by their path, whether it is run here or not."""
    for block in page.shell_blocks():
        for at, line in enumerate(block["lines"], block["line"] + 1):
            for path in re.findall(r"(?:^|[|;&(])\s*(?:\w+=\S* )*((?:scripts|examples)/[\w./-]+\.(?:py|sh))", line):
                file = root / path
                if file.is_file() and not (os.access(file, os.X_OK) and file.read_bytes().startswith(b"#!")):
                    yield at, f"{path} is not executable, or does not begin with #!"


def not_in_file(root, block, name):
    file = root / name
    lines = iter([line.strip() for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else ())
    for at, line in enumerate(block["lines"], block["line"] + 1):
        quoted = line.strip()
        if quoted and quoted not in ("...", "// ...") and quoted not in lines:  # `in` goes on behind what was found
            yield at, f"{name} has no such line, or not here: {quoted}"
            return


def bad_marks(root, page, programs):
    looks = re.compile(r"^\s*(?:\w+=\S* )*(?:scripts/|examples/\S+\.sh|mpirun |srun |torchrun |sbatch |cmake |ctest |pip |git |\./|"
                       + "|".join(re.escape(name) + r"(?:\s|$)" for name in sorted(programs)) + ")")
    for block in page.blocks:
        kind, what = block["mark"] or (None, None)
        if kind == "open":
            yield block["line"], "the fence is never closed"
        elif kind == "needs" and not set(re.split(r",\s*", what)) <= NEEDS:
            yield block["line"] - 1, f"needs: {what}; known are {', '.join(sorted(NEEDS))}"
        elif kind == "not run" and not what:
            yield block["line"] - 1, "not run: the reason is missing"
        elif kind == "from":
            yield from not_in_file(root, block, what)
        if not block["language"] and any(looks.match(line) for line in block["lines"]) and not RECORDS.match(page.name):
            yield block["line"], "commands stand in a block of bash (what a program prints: text)"


def links(root, bin_folder=None):
    """Yields 'page:line: what'."""
    made = {}

    def anchors_of(file):
        if file not in made:
            made[file] = Page(root, file).anchors()
        return made[file]

    programs, flags = known_names(root)
    flags |= FOREIGN
    exact = helps(bin_folder, programs) if bin_folder else {}
    for file in pages(root):
        page = Page(root, file)
        names = [] if RECORDS.match(page.name) else dead_names(root, page, programs, flags, exact)  # figures of before have flags of before
        for at, what in [*dead_links(root, page, anchors_of), *names, *bad_marks(root, page, programs), *scripts_that_do_not_start(root, page)]:
            yield f"{page.name}:{at}: {what}"
    for path, name in pages_without_navigation(root):
        yield f"{path}: mkdocs.yml does not list {name} under nav"


def script_of(page):
    """The page's blocks as a script whose lines have the numbers of the page."""
    lines = [""] * len(page.lines)
    for block in page.shell_blocks():
        if not block["mark"]:
            for number, line in enumerate(block["lines"], block["line"]):
                lines[number] = line
    return "\n".join(lines) + "\n"


PROLOGUE = r"""unset BASH_ENV
set -eE -o pipefail
trap 'status=$?; echo "docs_check: $DOCS_PAGE:$LINENO: exit status $status: $BASH_COMMAND" >&3' ERR
"""


def run(root, chosen, clone, seconds):
    """Runs the pages in a clone of the newest commit; the first is built by README's own commands, or by scripts/build.sh."""
    subprocess.run(["rm", "-rf", clone], check=True)
    subprocess.run(["git", "clone", "--quiet", "--no-local", root, clone], check=True)
    clone, logs = clone.resolve(), clone.resolve().parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "prologue.sh").write_text(PROLOGUE)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TERM": "dumb", "TESSERA_CUDA": "off"}
    todo = [Page(clone, clone / name) for name in chosen] or [page for page in (Page(clone, file) for file in pages(clone))
                                                             if not RECORDS.match(page.name) and page.name != "CONTRIBUTING.md"]
    failed = ran = 0
    if not todo or todo[0].name != "README.md":
        subprocess.run([clone / "scripts/build.sh"], cwd=clone, check=True, stdout=subprocess.DEVNULL)
    for page in todo:
        binaries = sorted(str(folder) for folder in clone.glob("build/*/bin"))
        environment["PATH"] = os.pathsep.join([*binaries, os.environ["PATH"]])
        blocks = [block for block in page.shell_blocks() if not block["mark"]]
        if not blocks:
            continue
        ran += len(blocks)
        name = page.name.replace("/", "_").removesuffix(".md")
        script, log = logs / f"{name}.sh", logs / f"{name}.log"
        script.write_text(script_of(page))
        said_file = logs / f"{name}.failed"
        with log.open("w") as output, said_file.open("w") as said:
            command = ["sh", "-c", f'exec 3>&{said.fileno()}; BASH_ENV="$1" exec timeout {seconds} bash "$0"', script, logs / "prologue.sh"]
            status = subprocess.run(command, cwd=clone, env={**environment, "DOCS_PAGE": page.name}, stdin=subprocess.DEVNULL,
                                    stdout=output, stderr=subprocess.STDOUT, pass_fds=[said.fileno()], check=False).returncode
        told = said_file.read_text().splitlines()
        late = f" after {seconds} s, the limit of a page" if status == 124 else ""
        print("\n".join(told[:1]) if told else f"docs_check: {page.name}: {len(blocks)} block(s), exit status {status}{late}", flush=True)
        if status:
            failed += 1
            print("\n".join(log.read_text(errors="replace").splitlines()[-15:]), flush=True)
            if page.name == "README.md" and len(todo) > 1:
                print("the other pages were not run: they need what README builds")
                return 1
        subprocess.run(["git", "-C", clone, "clean", "-ffdxq", "-e", "/build", "-e", "/.deps"], check=True)
    print(f"{ran} blocks of {len(todo)} pages run in a fresh clone, {failed} page(s) failed")
    return 1 if failed else 0


def measure(page):
    """Words, and sentences, of prose: no code blocks, tables, headings and comments; a piece of inline code is a word."""
    paragraphs, now = [], []
    for line in [*page.prose, ""]:
        line = line.strip()
        if re.match(r"^(#|\||!\[|<|:::|    )", line):
            line = ""
        starts = re.match(r"^([-*+]|\d+\.)\s+", line)
        if (not line or starts) and now:
            paragraphs.append(" ".join(now))
            now = []
        if line:
            now.append(line[starts.end():] if starts else line)
    words = sentences = 0
    for text in paragraphs:
        text = re.sub(r"(`+).+?\1", "code", text)
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
        here = len(re.findall(r"\w[\w'’.,/-]*", text))
        words += here
        if here:
            sentences += max(1, len(re.findall(r"[.!?][)*\"”]*(?=\s+[A-Z0-9`(\"*]|\s*$)", text)))
    return words, sentences


def count(root):
    print("| page | words | words a sentence |\n|---|---:|---:|")
    all_words = all_sentences = 0
    for file in pages(root):
        page = Page(root, file)
        if GENERATED.match(page.name):
            continue
        words, sentences = measure(page)
        all_words, all_sentences = all_words + words, all_sentences + sentences
        print(f"| {page.name} | {words} | {words / max(1, sentences):.1f} |")
    print(f"| all | {all_words} | {all_words / max(1, all_sentences):.1f} |")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    how = parser.add_mutually_exclusive_group(required=True)
    for name in ("links", "run", "count"):
        how.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--bin", type=pathlib.Path)
    parser.add_argument("--clone", type=pathlib.Path, default=pathlib.Path("build/docs/clone"))
    parser.add_argument("--seconds", type=int, default=7200, help="of a page; README builds everything")
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("pages", nargs="*")
    args = parser.parse_args()
    args.root = args.root.resolve()
    if args.count:
        return count(args.root)
    if args.run:
        return run(args.root, args.pages, args.clone, args.seconds)
    found = list(links(args.root, args.bin))
    print("\n".join(found) if found else f"the links, names and marks of {len(pages(args.root))} pages hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
