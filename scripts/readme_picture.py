#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws docs/assets/speed.svg, README's picture, from the tables of docs/results/performance.md, and speed_narrow.svg for phones.

--check: says whether they are the ones that are there.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/results/performance.md"
PICTURES = {ROOT / "docs/assets/speed.svg": False, ROOT / "docs/assets/speed_narrow.svg": True}
# A title, and rows: what the picture calls it; work and layout as a table of the page has them; which of several rates.
GROUPS = (
    (("BLOOM-560m in full", "one H200, 16 rows of 512 tokens"), (
        ("tessera", "bloom-560m, mb 16", "single", 0),
        ("PyTorch, compiled, flex *", "bloom-560m, mb 16", "PyTorch, compiled, flex attention", 0),
        ("PyTorch, compiled", "bloom-560m, mb 16", "PyTorch, blocks and loss compiled", 0),
        ("transformers Trainer", "bloom-560m, mb 16", "transformers' Trainer", 0),
        ("DeepSpeed, stage 1", "bloom-560m, mb 16", "DeepSpeed stage 1, stage 2", 0))),
    (("Llama-3.2-1B, LoRA", "one H100, 8 rows of 512 tokens"), (
        ("tessera", "llama-3.2-1b, adapters, 8 x 512", "single", 0),
        ("PEFT, compiled", "llama-3.2-1b, adapters, 8 x 512", "PEFT, compiled; not compiled", 0),
        ("PEFT", "llama-3.2-1b, adapters, 8 x 512", "PEFT, compiled; not compiled", 1))),
    (("Qwen2.5-14B, offloaded", "one H100, 4 times 4 rows of 512 tokens"), (
        ("tessera", "qwen2.5-14b, 4 x 4 x 512", "offloaded, `auto`", 0),
        ("DeepSpeed, stage 2", "qwen2.5-14b, 4 x 4 x 512", "DeepSpeed in the same call", 0))),
)
STYLE = """.card{fill:#fff}.t{fill:#1f2933}.s{fill:#52606d}.us{fill:#00796b}.they{fill:#9aa5b1}.b{font-weight:600}
@media (prefers-color-scheme:dark){.card{fill:#1b1f27}.t{fill:#f0f4f8}.s{fill:#b8c2cc}.us{fill:#4db6ac}.they{fill:#6b7785}}"""


def table_rows():
    """(work, layout, rate, peak, date) of each row for one GPU; the date stands in the row, in its last link, or above the table."""
    work, columns, above = "", None, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        above = (re.match(r"\d{4}-\d\d-\d\d", line) or [above])[0]
        if not line.startswith("|"):
            columns = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if columns is None:
            columns = {re.sub(r"/GPU$", "", name): at for at, name in enumerate(cells)}
        elif {"work", "layout", "tokens/s", "peak MiB"} <= columns.keys() and "---" not in cells[0]:
            work = cells[0] or work
            layout = cells[columns["layout"]]
            if "GPUs" not in columns or cells[columns["GPUs"]] == "1":
                dates = re.findall(r"\d{4}-\d\d-\d\d", line)
                yield work, layout, cells[columns["tokens/s"]], cells[columns["peak MiB"]], dates[0] if dates else above


def figures():
    """[(title, [(label, thousands of tokens/s, GiB)])], and the dates of all."""
    rows, groups, dates = list(table_rows()), [], {}
    for title, wanted in GROUPS:
        group = []
        for label, work, layout, which in wanted:
            found = [row for row in rows if row[0] == work and re.split(r", \d", row[1])[0] == layout]
            if len(found) != 1:
                sys.exit(f"{PAGE.relative_to(ROOT)} has {len(found)} rows of {work}: {layout}")
            _, _, rate, peak, date = found[0]
            rate, peak = (re.split(r"[;,] ", text)[which if ";" in text else 0] for text in (rate, peak))
            group.append((label, float(rate.removesuffix("k")), int(peak.replace(",", "")) / 1024))
            dates[label, title] = date
        groups.append((title, sorted(group, key=lambda row: -row[1])))
    return groups, dates


def picture(narrow):
    groups, dates = figures()
    size, height, bar, left, width, second = (380, 25, 18, 194, 112, 0) if narrow else (760, 25, 18, 236, 176, 496)
    star = next(date for (label, _), date in dates.items() if "*" in label)
    notes = [f"bf16, AdamW, LibTorch 2.11, {min(dates.values())} to {max(dates.values())}.",
             "All figures and commands: docs/results/performance.md.", f"* flex attention, {star}, beside tessera at 139.3k.",
             "Offloaded: tessera fills the GPU with optimizer state."]
    if not narrow:
        notes = [" ".join(notes[:2]), " ".join(notes[2:])]
    words = ("tokens/s: more is better", "peak GPU memory: less is better")
    out, y = [], 32
    out.append(f'<text class="t b" x="20" y="{y}" font-size="16">Training on one GPU</text>')
    for (name, work), rows in groups:
        y += 34
        out.append(f'<text class="t b" x="20" y="{y}">{name}</text>')
        if narrow:
            y += 19
        out.append(f'<text class="s" x="{20 if narrow else left}" y="{y}" font-size="13">{work}</text>')
        for chart in (0, 1):
            top = y + 10 if not narrow or chart == 0 else y + 8
            if narrow or name == groups[0][0][0]:
                if narrow:
                    y += 20
                    top = y + 8
                    out.append(f'<text class="s" x="20" y="{y}" font-size="12">{words[chart]}</text>')
                else:
                    out.append(f'<text class="s" x="{left if chart == 0 else second}" y="32" font-size="13">{words[chart]}</text>')
            most = max(row[1 + chart] for row in rows)
            x = left if narrow or chart == 0 else second
            for at, (label, *values) in enumerate(rows):
                kind, bold = ("us", " b") if label == "tessera" else ("they", "")
                down = top + height * at
                if narrow or chart == 0:
                    out.append(f'<text class="t{bold}" x="20" y="{down + 14}" font-size="13">{label}</text>')
                length = round(width * values[chart] / most, 1)
                said = f"{values[0]:.1f}k" if chart == 0 else f"{values[1]:.1f} GiB"
                out.append(f'<rect class="{kind}" x="{x}" y="{down}" width="{length}" height="{bar}" rx="3"/>')
                out.append(f'<text class="t{bold}" x="{x + length + 8}" y="{down + 14}" font-size="13">{said}</text>')
            if narrow:
                y = top + height * len(rows)
        if not narrow:
            y += 10 + height * len(rows)
    y += 22
    for note in notes:
        out.append(f'<text class="s" x="20" y="{y}" font-size="12">{note}</text>')
        y += 19
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {y}" width="{size}" height="{y}" font-family="system-ui, sans-serif" '
            'font-size="14" role="img" aria-label="Tokens per second and peak memory beside other trainers: BLOOM, Llama, Qwen">')
    return "\n".join([head, f"<style>{STYLE}</style>", f'<rect class="card" width="{size}" height="{y}" rx="10"/>', *out, "</svg>"]) + "\n"


if __name__ == "__main__":
    for file, narrow in PICTURES.items():
        if sys.argv[1:] != ["--check"]:
            file.write_text(picture(narrow), encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != picture(narrow):
            sys.exit(f"{file.relative_to(ROOT)} is not what {PAGE.relative_to(ROOT)} says: run scripts/readme_picture.py")
    print("README's picture shows the figures of docs/results/performance.md")
