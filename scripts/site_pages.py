# SPDX-License-Identifier: MIT
"""The pages of the site, and those that its navigation lacks. Needs no mkdocs."""
import re


def outside_pages(root):
    """Pages from outside docs/: path in the repository -> name on the site."""
    found = {name: name.lower() for name in ("CONTRIBUTING.md", "CHANGELOG.md") if (root / name).exists()}
    for file in sorted((root / "benchmarks/results").glob("*.md")):
        found[f"benchmarks/results/{file.name}"] = "measurements/" + ("index.md" if file.name == "README.md" else file.name)
    return found


def pages_without_navigation(root):
    """Yields (path, name on the site) of each page that mkdocs.yml does not list; mkdocs' strict mode refuses them, too."""
    configuration = root / "mkdocs.yml"
    if not configuration.exists():
        return
    _, _, navigation = configuration.read_text(encoding="utf-8").partition("\nnav:\n")
    listed = set(re.findall(r"^\s+- .+: (\S+\.md)$", navigation, flags=re.MULTILINE))
    inside = {file.relative_to(root).as_posix(): file.relative_to(root / "docs").as_posix() for file in sorted((root / "docs").rglob("*.md"))}
    for path, name in {**inside, **outside_pages(root)}.items():
        if name not in listed:
            yield path, name
