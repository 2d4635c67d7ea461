#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws docs/assets/holds.svg, what each of four ranks holds under each strategy, and holds_narrow.svg for phones.

--check: says whether they are the ones that are there.
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURES = {ROOT / "docs/assets/holds.svg": False, ROOT / "docs/assets/holds_narrow.svg": True}
RANKS = LAYERS = PARTS = 4
STYLE = """.card{fill:#fff}.t{fill:#1f2933}.s{fill:#52606d}.b{font-weight:600}.no{fill:#e4e7eb}.p{fill:#3b6fb6}.g{fill:#c98a1b}.o{fill:#00796b}
.while{fill:#a9c3e6}.host{fill:none;stroke:#00796b;stroke-width:1.2}.line{stroke:#e4e7eb}
@media (prefers-color-scheme:dark){.card{fill:#1b1f27}.t{fill:#f0f4f8}.s{fill:#b8c2cc}.no{fill:#323943}.p{fill:#6f9fe0}.g{fill:#e0a83f}.o{fill:#4db6ac}
.while{fill:#3d5575}.host{stroke:#4db6ac}.line{stroke:#323943}}"""


def whole(rank, layer, part):
    return True


def shard(rank, layer, part):
    return part == rank


def shard_of_two(rank, layer, part):
    return part // 2 == rank % 2


def stage(rank, layer, part):
    return layer == rank


# Name, what it says below, what a rank holds of parameters, gradients and optimizer state, bytes a parameter with AdamW in bf16.
ROWS = (
    ("ddp", "whole copies", (whole, whole, whole), "14 P"),
    ("zero1", "optimizer state sharded", (whole, whole, shard), "4 P + 10 P / 4"),
    ("zero2", "and gradients", (whole, shard, shard), "2 P + 12 P / 4"),
    ("zero3, fsdp", "and parameters", (shard, shard, shard), "14 P / 4"),
    ("fsdp, shard_ranks 2", "two groups of two ranks", (shard_of_two,) * 3, "14 P / 2"),
    ("pipeline_parallel 4", "a rank has whole layers", (stage,) * 3, "14 P / 4"),
    ("tensor_parallel 4", "a rank has parts of all layers", (shard,) * 3, "14 P / 4"),
    ("zero1, offload optimizer", "state in host memory", (whole, whole, shard), "4 P, host 10 P / 4"),
)


def grid(x, y, cell, holds, rank, kind, gathered):
    paths = {}
    for layer in range(LAYERS):
        for part in range(PARTS):
            look = kind if holds(rank, layer, part) else "while" if gathered and layer == 1 else "no"
            inset = 0.6 if look == "host" else 0
            side = cell - 1 - 2 * inset
            paths.setdefault(look, []).append(f"M{x + cell * part + inset:g} {y + cell * layer + inset:g}h{side:g}v{side:g}h-{side:g}z")
    return "".join(f'<path class="{look}" d="{"".join(path)}"/>' for look, path in paths.items())


def picture(narrow):
    cell, between, left, top, height = (6, 5, 16, 118, 70) if narrow else (9, 8, 196, 92, 62)
    side = cell * LAYERS
    pitch = 3 * side + 2 * between + (12 if narrow else 20)
    size = left + RANKS * pitch + (4 if narrow else 0)
    out = [f'<text class="t b" x="16" y="30" font-size="16">What each of four ranks holds</text>']
    legend = (("p", "parameters"), ("g", "gradients"), ("o", "optimizer state"), ("while", "gathered, a block at a time"), ("host", "in host memory"))
    x, y = 16, 54
    for look, words in legend:
        length = 18 + 6.6 * len(words) + 14
        if x + length > size:
            x, y = 16, y + 18
        out.append(f'<rect class="{look}" x="{x}" y="{y - 10}" width="11" height="11"/><text class="s" x="{x + 16}" y="{y}" font-size="12">{words}</text>')
        x += length
    out.append(f'<text class="s" x="16" y="{top - 14}" font-size="12">{"rows: layers, columns: parts" if narrow else "rows: layers; columns: parts"}</text>')
    if not narrow:
        out += [f'<text class="s" x="{left + pitch * rank}" y="{top - 14}" font-size="12">rank {rank}</text>' for rank in range(RANKS)]
    for at, (name, words, held, size_of) in enumerate(ROWS):
        y = top + height * at
        out.append(f'<line class="line" x1="16" x2="{size - 16}" y1="{y - 6}" y2="{y - 6}"/>')
        if narrow:
            out.append(f'<text class="t b" x="16" y="{y + 11}" font-size="13">{name}</text>'
                       f'<text class="s" x="{size - 16}" y="{y + 11}" font-size="12" text-anchor="end">{size_of} bytes</text>')
            y += 22
        else:
            out += [f'<text class="t b" x="16" y="{y + 12}" font-size="13">{name}</text>', f'<text class="s" x="16" y="{y + 28}" font-size="12">{words}</text>',
                    f'<text class="s" x="16" y="{y + 44}" font-size="12">{size_of} bytes</text>']
        for rank in range(RANKS):
            for which, (holds, kind) in enumerate(zip(held, "pgo")):
                look = "host" if kind == "o" and "offload" in name else kind
                gathered = kind == "p" and "fsdp" in name
                out.append(grid(left + pitch * rank + (side + between) * which, y + (0 if narrow else 6), cell, holds, rank, look, gathered))
    total = top + height * len(ROWS) + 4
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size:g} {total}" width="{size:g}" height="{total}" font-family="system-ui, sans-serif" '
            'role="img" aria-label="What each of four ranks holds under each strategy; the tables of the page say the same">')
    return "\n".join([head, f"<style>{STYLE}</style>", f'<rect class="card" width="{size:g}" height="{total}" rx="10"/>', *out, "</svg>"]) + "\n"


if __name__ == "__main__":
    for file, narrow in PICTURES.items():
        if sys.argv[1:] != ["--check"]:
            file.write_text(picture(narrow), encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != picture(narrow):
            sys.exit(f"{file.relative_to(ROOT)} is not what scripts/strategies_picture.py draws: run it")
    print("the pictures of what ranks hold are as the script draws them")
