# SPDX-License-Identifier: MIT
"""mkdocs' hooks: pages from outside docs/, links that leave docs/, and lists and tables that follow a line of text as GitHub takes them."""
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import site_api
from site_pages import outside_pages
LINK = re.compile(r"(?<!!)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s:]+)\)")
# The search: what a page counts for, and words that are typed but do not stand in its headings.
BOOSTS = (("get-started/looks", 0.2), ("get-started/", 3), ("guides/studies", 0.5), ("guides/", 3), ("library/", 3), ("migrate/", 2), ("concepts/", 1),
          ("reference/", 1), ("results/", 0.1), ("studies/", 0.001), ("measurements/", 0.001), ("changelog", 0.001), ("contributing", 0.1), ("", 1))
KEYWORDS = {"get-started/faq.md": ["out of memory", "oom"], "get-started/choose-a-strategy.md": ["zero1", "zero2", "zero3", "ddp", "multiple gpus"], "guides/checkpoints.md": ["resume", "checkpoint", "checkpoints"],
            "guides/planning.md": ["gradient checkpointing"], "reference/flags.md": ["learning rate", "batch size"]}
ITEM = re.compile(r"^\s*([-*+]|\d+\.)\s")


def on_files(files, config):
    for path, name in outside_pages(ROOT).items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def relinked(text, name, config):
    """Links of a page to where its targets are on the site; what is not on it is its text, or lies in the repository that repo_url names."""
    outside = outside_pages(ROOT)
    origin = next((path for path, page in outside.items() if page == name), f"docs/{name}")

    def of(match):
        words, (path, _, anchor) = match.group(1), match.group(2).partition("#")
        if not path:
            return match.group()
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        if path.startswith(("api/", "../api/")):
            return f'<a href="{path}">{words}</a>'  # Doxygen's
        page = outside.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else "")
        if page == "README.md" or not page or not (target in outside or (ROOT / target).is_file()):
            where = config.repo_url
            return match.group() if page else f"[{words}]({where.rstrip('/')}/blob/main/{target})" if where else words
        return f"[{words}]({posixpath.relpath(page, posixpath.dirname(name) or '.')}{'#' + anchor if anchor else ''})"

    return LINK.sub(of, text)


def on_page_markdown(markdown, page, config, files):
    page.meta["search"] = {"boost": next(boost for folder, boost in BOOSTS if page.file.src_uri.startswith(folder))}
    if page.file.src_uri in KEYWORDS:
        page.meta["tags"] = KEYWORDS[page.file.src_uri]
    # Mermaid's program would come from elsewhere; the site has this picture.
    markdown = re.sub(r"<!-- the include graph.*?<!-- end of the include graph -->", "[The picture is in Architecture](docs/concepts/architecture.md).", markdown,
                      flags=re.DOTALL)
    markdown = re.sub(r"<!-- every class: .*?-->", lambda _: "## Every class\n\n" + site_api.table(ROOT), markdown)
    made, fence, before = [], None, ""
    for line in markdown.split("\n"):
        opens = re.match(r"^\s*(```+|~~~+)", line)
        if fence is None:
            text = before.strip()
            item = ITEM.match(line) and text and not ITEM.match(before) and not before.startswith(" ")
            table = line.startswith("|") and text and not before.startswith("|")
            if item or table:
                made.append("")
            line = relinked(line, page.file.src_uri, config) if not opens else line
            fence = opens.group(1) if opens else None
        elif opens and opens.group(1).startswith(fence):
            fence = None
        made.append(line)
        before = line
    return "\n".join(made)
