# SPDX-License-Identifier: MIT
"""words.py must find a private word in a header, a page and a message, a sentence without its noun, a term named twice; nothing else."""
import pathlib
import sys
import tempfile

import cases
import words

LISTED = "# a comment = no word\nsecret words? = the field's word\npending later = another\n"
FENCE = "```"
# (what is planted, path, text, a piece of the only complaint; None: no complaint)
PLANTED = [
    ("a header", "include/tessera/a.h", "/// Keeps a secret word.\n", "include/tessera/a.h:1: 'secret word' in"),
    ("a header's member", "include/tessera/a.h", "int a;  // secret words\n", "include/tessera/a.h:1: 'secret words' in"),
    ("two lines", "include/tessera/a.h", "int a;\n/// Keeps a secret\n/// word.\n", "include/tessera/a.h:2: 'secret word' in"),
    ("a header's code", "include/tessera/a.h", "int secret_word(const char* text = \"no\");\n", None),
    ("a private header", "lib/core/a.h", "// A secret word.\n", None),
    ("part of a word", "include/tessera/a.h", "// Secret wordings.\n", None),
    ("a page", "docs/guides/a.md", "# A\nA Secret word.\n", "docs/guides/a.md: 'Secret word' in"),
    ("the first page", "README.md", "A secret word.\n", "README.md: 'secret word' in"),
    ("a page's block", "docs/a.md", f"{FENCE}bash\nsecret word\n{FENCE}\n", None),
    ("a page's name", "docs/a.md", "See `secret word` and [it](secret word).\n", None),
    ("a message", "lib/run/a.cpp", 'fail("no secret "\n     "word");\n', "a message: 'secret word' in"),
    ("a program's message", "examples/a/main.cpp", 'log("a secret word");\n', "a message: 'secret word' in"),
    ("a pending word", "include/tessera/a.h", "// Later.\n", None),
    ("Of", "include/tessera/a.h", "// Of all ranks.\n", "a.h:1: 'Of all ranks.' begins with neither"),
    ("What, behind another", "include/tessera/a.h", "/// Bytes. What a rank\n/// holds.\n", "a.h:1: 'What a rank holds.' begins with neither"),
    ("What, behind a colon", "include/tessera/a.h", "int a;  // bytes: What is held\n", "'What is held' begins with neither"),
    ("of, inside", "include/tessera/a.h", "/// Bytes of all ranks. Ofs are words.\n", None),
    ("Of in a string", "include/tessera/a.h", 'const char* a = "// Of all";\n', None),
    ("a glossary", "docs/reference/glossary.md", "| term | meaning |\n|---|---|\n| rank, size | a |\n| axis* (row) | b |\n", None),
    ("a term named twice", "docs/reference/glossary.md", "| term | meaning |\n|---|---|\n| rank, size | a |\n| axis (Rank) | b |\n", "'rank' is named 2 times"),
    ("Of in a private header", "lib/core/a.h", "// Of all ranks.\n", None),
]


def found(path: str, text: str, listed: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, content in {"include/tessera/b.h": "// Bytes of a rank.\n", path: text}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content, encoding="utf-8")
        return words.problems(root, listed)


def own_list() -> list[str]:
    """The shipped list must parse, and name each word once."""
    patterns = [pattern.pattern for pending in (False, True) for pattern, _ in words.words(words.LIST.read_text(encoding="utf-8"), pending)]
    return [] if len(patterns) == len(set(patterns)) and patterns else [f"words.txt has {len(patterns)} words"]


# A word of the shipped list in each kind of text that users read.
SHIPPED = [
    ("a shipped word in a header", "include/tessera/a.h", "/// Fills the waiting room.\n", "include/tessera/a.h:1: 'waiting room' in"),
    ("a shipped word on a page", "docs/guides/a.md", "# A\nBlocks run again in backward.\n", "docs/guides/a.md: 'run again in backward' in"),
    ("a shipped word in a message", "lib/run/a.cpp", 'fail("the whereabouts are "\n     "unknown");\n', "a message: 'whereabouts' in"),
]
LIST = words.LIST.read_text(encoding="utf-8")

sys.exit(cases.check([*((name, found(path, text, LISTED), wanted) for name, path, text, wanted in PLANTED),
                      *((name, found(path, text, LIST), wanted) for name, path, text, wanted in SHIPPED),
                      ("words.txt", own_list(), None)]))
