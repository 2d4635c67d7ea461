# SPDX-License-Identifier: MIT
"""The pictures of which folder includes which, from the includes of the tree: in CONTRIBUTING.md, and docs/concepts/architecture.svg.

Usage: include_graph.py ROOT [--write]. Exits 1 when one of them is another; --write puts these there.
An arrow that follows from others is left out. Each folder of tests counts as "tests", and the SVG leaves tests and benchmarks out.
"""
import graphlib
import pathlib
import sys

import source_tree

SVG = "docs/concepts/architecture.svg"
BEGIN, END = "<!-- the include graph: tests/lint/include_graph.py . --write -->\n", "<!-- end of the include graph -->\n"


def edges_of(root):
    """Folder -> the other folders that its files include."""
    edges = {}
    for path in source_tree.source_files(root):
        folder = source_tree.folder_of(path)
        matches = map(source_tree.INCLUDE.match, (root / path).read_text(encoding="utf-8", errors="replace").splitlines())
        targets = {source_tree.included_folder(match.group(2)) for match in matches if match} - {None}
        folder, *targets = ("tests" if name.startswith("tests/") else name for name in (folder, *targets))
        edges.setdefault(folder, set()).update(set(targets) - {folder})
    return edges


def reduced(edges):
    """Folder -> the folders that it includes and that no other one of them includes; lowest folders first. Raises graphlib.CycleError where there is a cycle."""
    below, direct = {}, {}
    for folder in graphlib.TopologicalSorter(edges).static_order():
        targets = edges.get(folder, set())
        below[folder] = set(targets).union(*(below[target] for target in targets))
        direct[folder] = sorted(target for target in targets if not any(target in below[other] for other in targets))
    return direct


def picture(edges):
    """Mermaid of the graph without the arrows that follow from others."""
    direct = reduced(edges)
    name = {folder: folder.replace("/", "_").replace(".", "_") for folder in direct}
    title = {folder: f'{name[folder]}["{folder.removeprefix("comm/")}"]' for folder in direct}
    title["comm"] = 'comm_itself["Communicator, transport interface"]'
    name["comm"] = "comm_itself"
    rooms = sorted(folder for folder in direct if folder.split("/")[0] == "comm")
    lines = ["```mermaid", "flowchart TD", "  subgraph comm", *(f"    {title[folder]}" for folder in rooms), "  end"]
    lines += [f"  {title[folder]}" for folder in sorted(direct) if folder not in rooms and folder != name[folder]]
    lines += [f"  {name[folder]} --> {' & '.join(sorted(name[target] for target in direct[folder]))}" for folder in sorted(direct) if direct[folder]]
    return "\n".join(lines + ["```"]) + "\n"


def rows_of(direct):
    """Rows, the lowest folder last, and the links between neighbouring rows: an arrow over several rows has a place of its own in each."""
    depth = {}
    for folder in reversed(list(direct)):
        depth[folder] = 1 + max((depth[other] for other in direct if folder in direct[other]), default=-1)
    rows = [sorted(folder for folder in direct if depth[folder] == row) for row in range(max(depth.values()) + 1)]
    arrows = []
    for folder in sorted(direct):
        for target in direct[folder]:
            bends = [f"{folder}>{target}>{row}" for row in range(depth[folder] + 1, depth[target])]
            for bend in bends:
                rows[int(bend.rsplit(">", 1)[1])].append(bend)
            arrows.append([folder, *bends, target])
    near = {"up": {}, "down": {}}
    for arrow in arrows:
        for above, below in zip(arrow, arrow[1:]):
            near["down"].setdefault(above, []).append(below)
            near["up"].setdefault(below, []).append(above)
    for turn in range(24):
        side = "up" if turn % 2 == 0 else "down"
        for row in rows if side == "up" else rows[::-1]:
            place = {name: (at + 0.5) / len(other) for other in rows for at, name in enumerate(other)}
            row.sort(key=lambda name: (round(sum(place[o] for o in near[side].get(name, [name])) / len(near[side].get(name, [name])), 6), name))
    return rows, arrows


def svg(edges):
    rows, arrows = rows_of(reduced({folder: targets for folder, targets in edges.items() if folder not in ("tests", "benchmarks")}))
    step, box, tall, bend = 66, 104, 30, 22
    breadth = [sum(bend if ">" in name else box + 16 for name in row) for row in rows]
    width, height, centre = max(breadth), step * len(rows) - step + tall + 12, {}
    for number, row in enumerate(rows):
        x = (width - breadth[number]) / 2
        for name in row:
            own = bend if ">" in name else box + 16
            centre[name] = (round(x + own / 2), step * number + tall // 2 + 6)
            x += own
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="Which folder includes which">',
             "<!-- SPDX-License-Identifier: MIT; written by tests/lint/include_graph.py -->",
             "<style>path{fill:none;stroke:#78909c;stroke-width:1.3}rect{fill:#eceff1;stroke:#546e7a;rx:5px}"
             "text{font:13px sans-serif;text-anchor:middle;fill:#263238}#tip{fill:#78909c;stroke:none}"
             "@media(prefers-color-scheme:dark){rect{fill:#37474f;stroke:#b0bec5}text{fill:#eceff1}}</style>",
             '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
             '<path id="tip" d="M0 0L8 4L0 8z"/></marker></defs>']
    for arrow in arrows:
        x, y = centre[arrow[0]]
        path, y = f"M{x} {y + tall // 2}", y + tall // 2
        for name in arrow[1:]:
            to, end = centre[name][0], centre[name][1] - tall // 2
            path += f"C{x} {(y + end) // 2} {to} {(y + end) // 2} {to} {end}"
            if ">" in name:
                end += tall
                path += f"L{to} {end}"
            x, y = to, end
        lines.append(f'<path d="{path}" marker-end="url(#arrow)"/>')
    for name in sorted(centre):
        if ">" not in name:
            x, y = centre[name]
            lines.append(f'<rect x="{x - box // 2}" y="{y - tall // 2}" width="{box}" height="{tall}"/><text x="{x}" y="{y + 5}">{name}</text>')
    return "\n".join(lines + ["</svg>"]) + "\n"


def main():
    root = pathlib.Path(sys.argv[1])
    document = root / "CONTRIBUTING.md"
    text = document.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    edges = edges_of(root)
    wanted = {document: text[:begin] + picture(edges) + text[end:], root / SVG: svg(edges)}
    wrong = [file for file, new in wanted.items() if not file.exists() or file.read_text() != new]
    if "--write" in sys.argv:
        for file in wrong:
            file.write_text(wanted[file])
        return 0
    for file in wrong:
        print(f"{file.relative_to(root)}: the include graph is not the tree's: python3 tests/lint/include_graph.py . --write")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
