#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws docs/assets/speed.svg, README's picture, from the table of docs/results/performance.md, and speed_narrow.svg for phones.

--check: says whether they are the ones that are there.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/results/performance.md"
PICTURES = {ROOT / "docs/assets/speed.svg": False, ROOT / "docs/assets/speed_narrow.svg": True}
# The layout's name in the table's rows for one GPU, and what the picture calls it.
ROWS = (("single", "tessera"), ("PyTorch, compiled, flex attention", "PyTorch, compiled, flex *"),
        ("PyTorch, blocks and loss compiled", "PyTorch, compiled"), ("transformers' Trainer", "transformers Trainer"),
        ("DeepSpeed stage 1, stage 2", "DeepSpeed, stage 1"))
FONT = ' font-size="13"'
STYLE = """.card{fill:#fff}.t{fill:#1f2933}.s{fill:#52606d}.us{fill:#00796b}.they{fill:#9aa5b1}.b{font-weight:600}
@media (prefers-color-scheme:dark){.card{fill:#1b1f27}.t{fill:#f0f4f8}.s{fill:#b8c2cc}.us{fill:#4db6ac}.they{fill:#6b7785}}"""


def figures():
    """Label -> (thousands of tokens/s, peak MiB, date) of bloom-560m, micro-batch 16, on one GPU."""
    found, work = {}, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 6:
            continue
        work = cells[0] or work
        for layout, label in ROWS:
            if work == "bloom-560m, mb 16" and cells[1] == "1" and cells[2] == layout:
                rate = float(re.match(r"([\d.]+)k", cells[3]).group(1))
                found[label] = (rate, int(cells[4].replace(",", "")), cells[5].split()[-1])
    missing = [label for _, label in ROWS if label not in found]
    if missing:
        sys.exit(f"{PAGE.relative_to(ROOT)} has no row of {', '.join(missing)}")
    return found


def picture(narrow):
    rows = figures()
    size, height, left, width, gap = (380, 30, 194, 112, 0) if narrow else (760, 34, 214, 190, 60)
    most = [max(row[i] for row in rows.values()) for i in (0, 1)]
    below = height * len(rows) + 44  # from one chart to the next, where they stand below each other
    top = 106 if narrow else 96
    columns = [(left, 0, "tokens/s, more is better", 0),
               (left, below, "peak memory, less is better", 1) if narrow else (left + width + gap + 22, 0, "peak memory, less is better", 1)]
    dates = {row[2] for label, row in rows.items() if "*" not in label}
    star = next(row[2] for label, row in rows.items() if "*" in label)
    title = ["Training bloom-560m on one H200:", "16 rows of 512 tokens, bf16, AdamW"]
    notes = [f"NVIDIA H200, LibTorch 2.11, {', '.join(sorted(dates))}: examples/studies/run.sh peers gpu",
             f"* flex attention, {star}, beside tessera at 139.3k; all commands and figures: docs/results/performance.md"]
    if narrow:
        notes = [part for note in notes for part in re.split(r"(?<=[:;]) ", note)]
    else:
        title = [" ".join(title)]
    total = top + height * len(rows) + (below if narrow else 0) + 26 + 20 * len(notes)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {total}" width="{size}" height="{total}" font-family="system-ui, sans-serif" '
           'font-size="14" role="img" aria-label="Tokens per second and peak memory beside other trainers">', f"<style>{STYLE}</style>",
           f'<rect class="card" width="{size}" height="{total}" rx="10"/>']
    out += [f'<text class="t b" x="20" y="{32 + 22 * at}" font-size="16">{line}</text>' for at, line in enumerate(title)]
    out += [f'<text class="s" x="{20 if narrow else x}" y="{top + down - 18}">{words}</text>' for x, down, words, _ in columns]
    for at, (label, row) in enumerate(sorted(rows.items(), key=lambda item: -item[1][0])):
        kind, bold = ("us", " b") if label == "tessera" else ("they", "")
        for chart, (x, down, _, i) in enumerate(columns):
            y = top + down + height * at
            if narrow or chart == 0:
                out.append(f'<text class="t{bold}" x="20" y="{y + 16}"{FONT if narrow else ""}>{label}</text>')
            length = round(width * row[i] / most[i], 1)
            said = f"{row[0]:.1f}k" if i == 0 else f"{row[1] / 1024:.1f} GiB"
            out.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{length}" height="22" rx="3"/>')
            out.append(f'<text class="t{bold}" x="{x + length + 8}" y="{y + 16}" font-size="13">{said}</text>')
    out += [f'<text class="s" x="20" y="{total - 18 - 20 * (len(notes) - 1 - at)}" font-size="12">{note}</text>' for at, note in enumerate(notes)]
    out.append("</svg>")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    for file, narrow in PICTURES.items():
        if sys.argv[1:] != ["--check"]:
            file.write_text(picture(narrow), encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != picture(narrow):
            sys.exit(f"{file.relative_to(ROOT)} is not what {PAGE.relative_to(ROOT)} says: run scripts/readme_picture.py")
    print("README's picture shows the figures of docs/results/performance.md")
