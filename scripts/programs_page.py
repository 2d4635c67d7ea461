#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""docs/reference/programs.md has what each program's --help prints.

Usage: programs_page.py ROOT BIN [--write]. Exits 1 when the page differs; --write puts the texts there. Sections whose flags
are all in docs/reference/flags.md are left out, and so is "General", which every program has.
"""
import pathlib
import re
import sys

from program_help import help_of

PAGE = "docs/reference/programs.md"
BLOCK = re.compile(r"<!-- help of (\S+) -->\n.*?<!-- end -->\n", re.S)


def shortened(text: str, training_flags: set[str]) -> str:
    parts = re.split(r"\n(?=[A-Z][^\n]*:\n  --)", text.rstrip("\n") + "\n")
    kept = parts[:1]
    for part in parts[1:]:
        flags = set(re.findall(r"^  --(\w+)", part, re.M))
        if not part.startswith("General:") and not flags <= training_flags:
            kept.append(part)
    return re.sub(r"[ \t]+$", "", "\n".join(kept), flags=re.M).strip("\n") + "\n"


def main() -> int:
    root, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    page, training = root / PAGE, set(re.findall(r"^\| `--(\w+)`", (root / "docs/reference/flags.md").read_text(), re.M))
    text = page.read_text()

    def block(match: re.Match) -> str:
        said = shortened(help_of(folder / match.group(1)) or sys.exit(f"{match.group(1)} --help: no text"), training)
        return f"<!-- help of {match.group(1)} -->\n```text\n{said}```\n<!-- end -->\n"

    wanted, count = BLOCK.subn(block, text)
    built = {file.name for file in folder.iterdir() if re.fullmatch(r"tessera-[a-z-]+", file.name)}
    missing = sorted(name for name in built if f"`{name}`" not in text)
    for name in missing:
        print(f"{PAGE} does not name {name}")
    if "--write" in sys.argv:
        page.write_text(wanted)
    elif wanted != text:
        print(f"{PAGE} differs from the programs' help: python3 scripts/programs_page.py . {sys.argv[2]} --write")
    return 1 if missing or count == 0 or ("--write" not in sys.argv and wanted != text) else 0


if __name__ == "__main__":
    sys.exit(main())
