#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts that describe the source tree, of one or more revisions side by side, as a Markdown table.

  scripts/house.py [REVISION...]      default: HEAD; "." is the working tree
  scripts/house.py --names [REVISION] what the table counts by name: headers, functions, types

Non-test code is include, lib, backends, examples, benchmarks, python. A private header has one includer when a single file
beside its own source includes it. Comment sentences are split at full stops, colons and semicolons.
"""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = (".h", ".hpp", ".cpp", ".cu", ".cuh")
TESTS = ("tests/",)
PARTS = ("include/", "lib/", "backends/", "examples/", "benchmarks/", "python/")


def files_of(revision):
    """{path: text} of all code files of a revision."""
    git = lambda *words: subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout
    if revision == ".":
        names = git("ls-files", "--cached", "--others", "--exclude-standard").decode().split("\n")
        return {name: (ROOT / name).read_text(errors="replace") for name in names if name.endswith(CODE) and (ROOT / name).is_file()}
    names = [name for name in git("ls-tree", "-r", "--name-only", revision).decode().split("\n") if name.endswith(CODE)]
    feed = "".join(f"{revision}:{name}\n" for name in names).encode()
    out = subprocess.run(["git", "-C", str(ROOT), "cat-file", "--batch"], input=feed, check=True, capture_output=True).stdout
    files, at = {}, 0
    for name in names:
        end = out.index(b"\n", at)
        size = int(out[at:end].split()[2])
        files[name] = out[end + 1:end + 1 + size].decode(errors="replace")
        at = end + size + 2
    return files


def sentences(text):
    blocks = re.findall(r"(?:^[ \t]*//[/!]?.*\n)+|//[/!]?<?.*$", text, re.M)
    for block in blocks:
        joined = " ".join(re.sub(r"^[ \t]*//[/!]?<?[ ]?", "", line) for line in block.splitlines())
        yield from (sentence.strip() for sentence in re.split(r"(?<=[.:;])\s+", joined))


def one_includer(files):
    """Private headers that one file includes, beside their own source."""
    includers = collections.Counter()
    for name, text in files.items():
        for header in set(re.findall(r'^#include "([^"]+)"', text, re.M)):
            includers[header] += pathlib.PurePath(name).stem != pathlib.PurePath(header).stem
    private = [name for name in files if name.endswith(".h") and name.startswith(("lib/", "backends/"))]
    return sorted(name for name in private if includers[name] == 1)


MANY = 9  # parameters
WORDS = "Plan|Place|Outcome|Comparison|Finding"
PARAMETER = re.compile(r"\s*(?:const\s+)?[\w:]+(?:<.*>)?(?:\s+const)?[\s&*]+\w*\s*(?:=.*)?", re.S)


def arguments(text, begin):
    """The comma-separated pieces up to the parenthesis that closes; brackets and templates hold theirs together."""
    pieces, depth, angles, piece = [], 0, 0, ""
    for at in range(begin, len(text)):
        char = text[at]
        if char == ")" and depth == 0:
            return pieces + [piece]
        depth += (char in "([{") - (char in ")]}")
        angles = max(0, angles + (char == "<") - (char == ">" and text[at - 1] != "-"))
        if char == "," and depth == 0 and angles == 0:
            pieces.append(piece)
            piece = ""
        else:
            piece += char
    return []


def long_functions(files):
    """Functions, by file, that are declared with MANY parameters or more; tests are left out."""
    found = set()
    for name, text in files.items():
        if not name.startswith(PARTS):
            continue
        code = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', re.sub(r"//[^\n]*", "", text))
        for match in re.finditer(r"(?<![.>\w])([A-Za-z_]\w*)\s*\(", code):
            pieces = arguments(code, match.end())
            if len(pieces) >= MANY and all(PARAMETER.fullmatch(piece) for piece in pieces):
                found.add(f"{name}: {match.group(1)}")
    return sorted(found)


def types_of_words(files):
    """Types whose name ends with one of WORDS."""
    pattern = re.compile(rf"^[ \t]*(?:struct|class|enum class|enum|using)\s+(\w*(?:{WORDS})s?)\b(?!;)", re.M)
    return sorted(f"{name}: {match}" for name, text in files.items() for match in pattern.findall(text))


def functions_of(files, path, name):
    """Member functions that a class declares."""
    text = files.get(path, "")
    begin = text.find(f"class {name} ")
    if begin < 0:
        return 0
    body = text[begin:text.index("\n};", begin)]
    body = re.sub(r"//.*", "", body)
    return len(set(re.findall(r"\b(~?\w+)\([^;{}]*\)\s*(?:const)?\s*(?:noexcept)?\s*(?:override)?\s*(?:= 0)?\s*[;{]", body)))


def counts(files):
    product = {name: text for name, text in files.items() if name.startswith(PARTS)}
    tests = {name: text for name, text in files.items() if name.startswith(TESTS)}
    lines = lambda some: sum(text.count("\n") for text in some.values())
    core = [text.count("\n") for name, text in files.items() if name.startswith(("lib/core/", "include/tessera/core/"))]
    strategy = "include/tessera/backends/sharding_strategy.h"
    return {
        "lines of code files, without tests": lines(product),
        "files, without tests": len(product),
        "lines of tests": lines(tests),
        "files of tests": len(tests),
        "public headers": sum(name.startswith("include/") for name in files),
        "private headers with one includer": len(one_includer(files)),
        "files of core below 40 lines": sum(count < 40 for count in core),
        f"functions of {MANY} parameters and more": len(long_functions(files)),
        "types that end with Plan, Place, Outcome, Comparison, Finding": len(types_of_words(files)),
        "functions of ShardingStrategy": functions_of(files, strategy, "ShardingStrategy"),
        "comment sentences that begin with Of or What": sum(
            bool(re.match(r"(Of|What)\b", sentence)) for text in files.values() for sentence in sentences(text)),
    }


def main():
    if sys.argv[1:2] == ["--names"]:
        files = files_of((sys.argv[2:] or ["."])[0])
        for title, names in (("One includer", one_includer(files)), (f"{MANY} parameters", long_functions(files)),
                             ("Words", types_of_words(files))):
            print(f"{title}: {len(names)}", *names, sep="\n  ")
        return
    revisions = sys.argv[1:] or ["HEAD"]
    columns = [counts(files_of(revision)) for revision in revisions]
    print("| | " + " | ".join(revisions) + " |\n|---|" + "---|" * len(revisions))
    for row in columns[0]:
        print(f"| {row} | " + " | ".join(f"{column[row]:,}" for column in columns) + " |")


if __name__ == "__main__":
    main()
