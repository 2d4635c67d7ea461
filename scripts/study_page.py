#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Puts a study that was run into docs/studies: its command, its rows' file, its tables, and its plot as a picture.

    scripts/study_page.py STUDY SIZE OUTPUT_DIR

OUTPUT_DIR is what examples/studies/run.sh wrote. Pictures are made by headless Chromium. A section "What it shows" of the page
that is there stays.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# tables by number in report.md, and the plot by its title in report.html
SHOWN = {"zero_stages": (["6", "7a"], "Tokens per second"), "offload": (["4", "3", "7d"], "Memory of one rank by category"),
         "fsdp": (["4", "7b", "7e"], "Memory of one rank by category"), "pipeline": (["1", "7c"], "Tokens per second"),
         "tensor": (["1", "2"], "Memory of one rank by category"), "weak_scaling": (["5a"], "Scaling"),
         "small_gpu": (["1", "2", "4"], "Training loss"), "peers": (["1", "4", "6"], "Tokens per second")}

# more pictures, which scripts draw of the page's tables
MORE = {"zero_stages-gpu": "![Peak memory of a GPU, measured, with its parts by the formulas](zero_stages-gpu-memory.svg)\n\n"}


def section(html, title):
    """The part of the page that holds this plot, wide, without its table of numbers."""
    found = re.search(r"<section[^>]*><h2>" + re.escape(title) + r"</h2>.*?</section>", html, re.S)
    if not found:
        sys.exit(f"report.html has no plot '{title}'")
    return re.sub(r"<details>.*?</details>|<figure class=\"narrow\">.*?</figure>", "", found[0], flags=re.S)


def picture(html, title, path):
    style = re.search(r"<style>.*?</style>", html, re.S)[0]
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "plot.html"
        page.write_text(f"<!doctype html><meta charset=utf-8>{style}<style>h2{{margin-top:8px}}</style><main>{section(html, title)}</main>")
        height = 165 + max(int(h) for h in re.findall(r'viewBox="0 0 860 (\d+)"', section(html, title)))
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", f"--window-size=900,{height}",
                        f"--screenshot={path}", str(page)], check=True, capture_output=True, timeout=120)


def started(folder):
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])


def main(study, size, output):
    output, docs = pathlib.Path(output), ROOT / "docs/studies"
    comparison = json.loads((output / "rows/compare.json").read_text())
    first = next(row for row in comparison["rows"] if row["runs"])
    start = started(output / "rows" / first["runs"][0])
    others = {key.removesuffix("_version"): value for row in comparison["rows"] if row["peer"] and row["runs"]
              for key, value in started(output / "rows" / row["runs"][0]).items() if key in ("transformers_version", "deepspeed_version")}
    numbers, plot = SHOWN[study]
    parts = re.split(r"(?m)^(?=## )", (output / "report/report.md").read_text())
    tables = [part.replace("## ", "### ", 1) for number in numbers for part in parts if part.startswith(f"## Table {number}.")]
    name = f"{study}-{size}"
    picture((output / "report/report.html").read_text(), plot, docs / f"{name}.png")
    passed = [row["row"] for row in comparison["rows"] if row["verdict"] == "PASS"]
    memory = [row["row"] for row in comparison["rows"] if row["verdict"] == "out of memory"]
    page = docs / f"{name}.md"
    said = re.search(r"(?ms)^## What it shows\n.*?(?=^## )", page.read_text() if page.exists() else "")
    ranks = max(row["world_size"] for row in comparison["rows"])
    page.write_text(
        f"# {study}, {size}\n\n    examples/studies/run.sh {study} {size}\n\n"
        + ("" if start["device"] == "cpu" else f"{ranks} x ")
        + f"{start['device']}, tessera {comparison['tessera_version']} ({comparison['git_sha']}), LibTorch {start['torch_version']}"
        + (f", CUDA {start['cuda_version']}, driver {start['driver_version']}" if start.get("driver_version") else "")
        + "".join(f", {name} {version}" for name, version in others.items())
        + f". Repeats: {comparison['repeat']}."
        + (f" {len(passed)} row{'s' * (len(passed) > 1)} had the numbers of the first row of their work." if passed else "")
        + (f" Out of memory, as expected: {', '.join(memory)}." if memory else "") + "\n\n" + (said[0] if said else "")
        + "## Rows\n\n```\n" + (ROOT / f"examples/studies/{study}/{size}.txt").read_text()
        + f"```\n\n## Plot and tables\n\n![{plot}]({name}.png)\n\n" + MORE.get(name, "") + "".join(tables).rstrip() + "\n")
    print(docs / f"{name}.md")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in SHOWN or not shutil.which("chromium"):
        sys.exit(__doc__ + "\nstudies: " + ", ".join(SHOWN))
    main(*sys.argv[1:])
