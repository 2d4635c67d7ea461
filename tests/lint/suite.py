# SPDX-License-Identifier: MIT
"""Checks ctest's own list of the suite: every entry has known labels, a time limit and a name of its own.

Usage: suite.py CTEST BUILD_FOLDER LABEL... (the known labels). Prints one line per violation and exits 1 when there is any.
"""
import collections
import json
import subprocess
import sys

ALWAYS = {"unit", "lint", "conformance", "parity", "programs", "package"}  # no build is without these


def violations(listing, known):
    """listing: what `ctest --show-only=json-v1` prints, parsed."""
    names = collections.Counter(entry["name"] for entry in listing["tests"])
    seen = set()
    for entry in listing["tests"]:
        name = entry["name"]
        properties = {p["name"]: p["value"] for p in entry.get("properties", [])}
        labels = properties.get("LABELS", [])
        seen.update(labels)
        if not labels:
            yield f"{name}: no label"
        for label in labels:
            if label not in known:
                yield f"{name}: unknown label '{label}'"
        if not properties.get("TIMEOUT"):
            yield f"{name}: no time limit"
        if properties.get("DISABLED"):
            yield f"{name}: disabled"
        if names[name] > 1:
            yield f"{name}: {names[name]} entries of this name"
    for label in sorted(ALWAYS - seen):
        yield f"no entry with the label '{label}'"


def main():
    ctest, folder, *known = sys.argv[1:]
    text = subprocess.run([ctest, "--show-only=json-v1"], cwd=folder, check=True, stdout=subprocess.PIPE).stdout
    listing = json.loads(text)
    found = list(violations(listing, known))
    print("\n".join(found) if found else f"{len(listing['tests'])} entries, all labelled")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
