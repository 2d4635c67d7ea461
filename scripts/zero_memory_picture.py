#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws docs/studies/zero_stages-gpu-memory.svg: peaks of the page's table 6, and what the formulas of docs/concepts/strategies.md say of them.

--check: says whether it is the one that is there.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE, PICTURE = ROOT / "docs/studies/zero_stages-gpu.md", ROOT / "docs/studies/zero_stages-gpu-memory.svg"
PARAMETERS, RANKS = 559_214_592, 2
# Bytes a parameter: parameters, gradients, AdamW with the fp32 masters that 16 bits had whole when the study ran.
BYTES = {"bf16": (2, 2, 12), "fp16": (2, 2, 12), "fp32": (4, 4, 8)}
SHARDED = {"ddp": (0, 0, 0), "zero1": (0, 0, 1), "zero2": (0, 1, 1), "zero3": (1, 1, 1)}
KINDS = (("p", "parameters"), ("g", "gradients"), ("o", "optimizer state"), ("a", "rest: activations, gathered blocks, buffers"))
STYLE = """.card{fill:#fff}.t{fill:#1f2933}.s{fill:#52606d}.b{font-weight:600}.p{fill:#3b6fb6}.g{fill:#c98a1b}.o{fill:#00796b}.a{fill:#9aa5b1}
@media (prefers-color-scheme:dark){.card{fill:#1b1f27}.t{fill:#f0f4f8}.s{fill:#b8c2cc}.p{fill:#6f9fe0}.g{fill:#e0a83f}.o{fill:#4db6ac}.a{fill:#6b7785}}"""


def rows():
    """(dtype, rows of a rank, strategy, GB by kind) of each row of table 6."""
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("### Table 6"):text.index("### Table 7a")]
    for line in table.splitlines():
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        name = re.match(r"(ddp|zero\d)-2(?:-bs(\d+))?", cells[0])
        if name:
            peak = float(cells[9].replace(",", "")) / 1000
            parts = [size * PARAMETERS / (RANKS if cut else 1) / 1e9 for size, cut in zip(BYTES[cells[2]], SHARDED[name.group(1)])]
            yield cells[2], int(name.group(2) or 8), name.group(1), [*parts, peak - sum(parts)]


def picture():
    groups = {}
    for dtype, batch, strategy, parts in rows():
        groups.setdefault((dtype, batch), []).append((strategy, parts))
    if len(groups) != 5:
        sys.exit(f"{PAGE.relative_to(ROOT)}: table 6 has {len(groups)} groups of rows instead of 5")
    most = max(sum(parts) for group in groups.values() for _, parts in group)
    left, width, height = 150, 520, 24
    out = ['<text class="t b" x="20" y="30" font-size="16">Peak memory of a GPU: bloom-560m on two GPUs</text>']
    x = 20
    for kind, words in KINDS:
        out.append(f'<rect class="{kind}" x="{x}" y="44" width="11" height="11"/><text class="s" x="{x + 16}" y="54" font-size="12">{words}</text>')
        x += 40 + round(6.4 * len(words))
    y = 70
    for (dtype, batch), group in sorted(groups.items(), key=lambda item: (["bf16", "fp16", "fp32"].index(item[0][0]), item[0][1] != 8, item[0][1])):
        y += 12
        for at, (strategy, parts) in enumerate(group):
            if at == 0:
                out.append(f'<text class="t b" x="20" y="{y + 14}" font-size="13">{dtype}</text><text class="s" x="20" y="{y + 30}" font-size="12">batch {batch}</text>')
            out.append(f'<text class="t" x="{left - 10}" y="{y + 14}" font-size="13" text-anchor="end">{strategy}</text>')
            x = left
            for (kind, _), part in zip(KINDS, parts):
                length = width * part / most
                out.append(f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{length:.1f}" height="18"/>')
                x += length
            out.append(f'<text class="t" x="{x + 8:.1f}" y="{y + 14}" font-size="13">{sum(parts):.1f} GB</text>')
            y += height
    y += 20
    out.append(f'<text class="s" x="20" y="{y}" font-size="12">Peaks: measured (table 6). Parameters, gradients and state: by the formulas; the rest is what remains.</text>')
    total = y + 16
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {total}" width="760" height="{total}" font-family="system-ui, sans-serif" '
            'role="img" aria-label="Peak memory of a GPU by strategy and dtype; table 6 has the numbers">')
    return "\n".join([head, f"<style>{STYLE}</style>", f'<rect class="card" width="760" height="{total}" rx="10"/>', *out, "</svg>"]) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--check"]:
        PICTURE.write_text(picture(), encoding="utf-8")
    elif not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != picture():
        sys.exit(f"{PICTURE.relative_to(ROOT)} is not what {PAGE.relative_to(ROOT)} says: run scripts/zero_memory_picture.py")
    print("the memory plot shows table 6 of the ZeRO study")
