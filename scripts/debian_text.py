#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Gathers text that Debian's packages ship: documentation, change logs, manual pages, licences.

    scripts/debian_text.py OUT [--megabytes 60] [--root /usr/share]

Writes OUT/train.jsonl and OUT/validation.jsonl, one file of a package a line. Files are taken in
the order of their contents' hashes, so that a prefix is a sample of all. A file, or a paragraph of
at least 200 characters, that was seen before is left out; every 40th file is for validation.
The same packages give the same text. A host with more documentation gives more:
apt-get install manpages-dev python3-doc perl-doc.
"""

import argparse
import gzip
import hashlib
import json
import os
import re
import sys

FOLDERS = ("doc", "man", "common-licenses", "perl", "info")
# A gzipped manual page or document.
NAMED = re.compile(r"\.([1-9]\w*|txt|md|rst|info|pod)$|^(README|NEWS|changelog|TODO|FAQ|HACKING|"
                   r"AUTHORS|CHANGES|THANKS|INSTALL)|^(GPL|LGPL|GFDL|Apache|Artistic|BSD|MPL|CC0)",
                   re.I)
MOST_BYTES = 4 << 20


def candidates(root):
    for folder in FOLDERS:
        for path, folders, files in os.walk(os.path.join(root, folder)):
            folders.sort()
            for name in sorted(files):
                plain = name.removesuffix(".gz")
                full = os.path.join(path, name)
                if NAMED.search(plain) and not os.path.islink(full):
                    yield full


def read(path):
    """Text of a file; empty where it is none."""
    try:
        if os.path.getsize(path) > MOST_BYTES:
            return ""
        with (gzip.open(path) if path.endswith(".gz") else open(path, "rb")) as file:
            text = file.read(MOST_BYTES).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError):
        return ""
    if "/man/" in path or path.endswith(".pod"):
        text = without_macros(text)
    return text if "\0" not in text else ""


def without_macros(text):
    """A manual page without roff's comments, requests and escapes."""
    lines = []
    for line in text.splitlines():
        if line.startswith((".\\\"", "'\\\"", ".de", ".ie", ".el", ".if", ".nr", ".ds")):
            continue
        if line.startswith("."):
            line = line.partition(" ")[2].replace('"', "")
        lines.append(re.sub(r"\\f\[?\w*\]?|\\[&,/|^]|\\s[-+]?\d", "", line).replace("\\-", "-"))
    return "\n".join(lines)


def without_repeats(text, seen):
    """Its paragraphs that are new; long ones are remembered."""
    kept = []
    for paragraph in re.split(r"\n\s*\n", text):
        if len(paragraph) >= 200:
            key = hashlib.blake2b(paragraph.encode(), digest_size=8).digest()
            if key in seen:
                continue
            seen.add(key)
        kept.append(paragraph)
    return "\n\n".join(kept).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--root", default="/usr/share")
    given = parser.parse_args()
    by_hash = {}
    for path in candidates(given.root):
        text = read(path)
        if len(text) >= 500:
            by_hash.setdefault(hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), text)
    os.makedirs(given.out, exist_ok=True)
    seen, written, count, limit = set(), {"train": 0, "validation": 0}, 0, given.megabytes << 20
    files = {name: open(f"{given.out}/{name}.jsonl", "w", encoding="utf-8") for name in written}
    for key in sorted(by_hash):
        text = without_repeats(by_hash[key], seen)
        if len(text) < 500:
            continue
        part = "validation" if count % 40 == 0 else "train"
        count += 1
        files[part].write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        written[part] += len(text.encode())
        if sum(written.values()) > limit:
            break
    for file in files.values():
        file.close()
    print(f"{count} files: " + ", ".join(f"{n / 1e6:.1f} MB for {p}" for p, n in written.items()))
    return 0 if written["train"] > 0 else f"no text below {given.root}"


if __name__ == "__main__":
    sys.exit(main())
