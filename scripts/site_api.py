# SPDX-License-Identifier: MIT
"""The classes of the public headers, for the site's page of them, which its search knows. Needs no mkdocs and no Doxygen.

site_api.py SITE: fails when a page of the site links to a page of Doxygen's that is not there.
"""
import pathlib
import re
import sys

DECLARATION = re.compile(r"(?:template <.*> )?(enum class|class|struct) (\w+)\b(?!.*;\s*$)")


def classes(root):
    """Yields (header, kind, name, first sentence of its comment) of each class, struct and enum in namespace tessera itself."""
    for file in sorted((root / "include/tessera").rglob("*.h")):
        header = file.relative_to(root / "include").as_posix()
        comment, inside = [], ""
        for line in file.read_text(encoding="utf-8").splitlines():
            namespace = re.match(r"namespace ([\w:]+)? ?\{", line)
            if namespace:
                inside = namespace.group(1) or "unnamed"
            elif re.match(r"\}  // namespace", line):
                inside = "tessera" if line.rstrip().endswith("detail") else ""
            elif line.startswith("///"):
                comment.append(line[3:].strip())
                continue
            declared = DECLARATION.match(line)
            if declared and comment and inside == "tessera":
                text = re.split(r"(?<=[.:;]) ", " ".join(comment))[0].rstrip(":;")
                yield header, declared.group(1), declared.group(2), re.sub(r"@\w+ ?|<|>", "", text)
            if not line.startswith(("template", "requires")):
                comment = []


def table(root):
    rows = ["| | header | |", "|---|---|---|"]
    for header, kind, name, text in sorted(classes(root), key=lambda row: row[2].lower()):
        page = "namespacetessera.html" if kind == "enum class" else f"{kind}tessera_1_1{name}.html"
        rows.append(f"| [{name}](../api/{page}) | `{header}` | {text} |".replace("||", "\\|\\|"))
    return "\n".join(rows)


def main(site):
    dead = set()
    for file in site.rglob("*.html"):
        if site / "api" not in file.parents or file.name == "index.html":
            for link in re.findall(r'href="([^"#:]*\bapi/[^"#]+)', file.read_text(encoding="utf-8")):
                if not (file.parent / link).exists():
                    dead.add(f"{file.relative_to(site)}: {link} leads nowhere")
    print(*sorted(dead), sep="\n", end="\n" if dead else "")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
