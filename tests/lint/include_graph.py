# SPDX-License-Identifier: MIT
"""The picture in CONTRIBUTING.md: which folder includes which, from the includes of the tree.

Usage: include_graph.py ROOT [--write]. Exits 1 when CONTRIBUTING.md has another picture; --write puts this one there.
An arrow that follows from others is left out. Each folder of tests counts as "tests".
"""
import graphlib
import pathlib
import sys

import source_tree

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


def picture(edges):
    """Mermaid of the graph without the arrows that follow from others. Raises graphlib.CycleError where there is a cycle."""
    below = {}
    for folder in graphlib.TopologicalSorter(edges).static_order():
        below[folder] = set(edges.get(folder, ())).union(*(below[target] for target in edges.get(folder, ())))
    name = {folder: folder.replace("/", "_").replace(".", "_") for folder in below}
    title = {folder: f'{name[folder]}["{folder.removeprefix("comm/")}"]' for folder in below}
    title["comm"] = 'comm_itself["Communicator, transport interface"]'
    name["comm"] = "comm_itself"
    rooms = sorted(folder for folder in below if folder.split("/")[0] == "comm")
    lines = ["```mermaid", "flowchart TD", "  subgraph comm", *(f"    {title[folder]}" for folder in rooms), "  end"]
    lines += [f"  {title[folder]}" for folder in sorted(below) if folder not in rooms and folder != name[folder]]
    for folder in sorted(below):
        targets = edges.get(folder, set())
        direct = sorted(name[target] for target in targets if not any(target in below[other] for other in targets))
        if direct:
            lines.append(f"  {name[folder]} --> {' & '.join(direct)}")
    return "\n".join(lines + ["```"]) + "\n"


def main():
    root = pathlib.Path(sys.argv[1])
    document = root / "CONTRIBUTING.md"
    text = document.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    new = text[:begin] + picture(edges_of(root)) + text[end:]
    if "--write" in sys.argv:
        document.write_text(new)
    elif new != text:
        print("CONTRIBUTING.md: the include graph is not the tree's: python3 tests/lint/include_graph.py . --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
