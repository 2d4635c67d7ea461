# SPDX-License-Identifier: MIT
"""Writes tests/unit/data/fixtures/{metaspace.json,metaspace_variants.json,metaspace_ids.jsonl}: a small BPE tokenizer with
metaspaces and byte fallback, variants of it configured as Llama 2, Mistral and CodeLlama are, and what Hugging Face tokenizers
makes of some thousands of strings with each.

Needs the `tokenizers` package. Usage: make_metaspace_fixture.py [repository root]
"""
import json
import pathlib
import random
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from fixture_text import random_text

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
FOLDER = ROOT / "tests/unit/data/fixtures"
SPACE = "\u2581"
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CODE = ["    return x\n", "        if (x == 0) {\n            y += 1;\n        }\n", "def f(x):\n    return x  # done\n", "\t\tfor i in x:\n\n"] * 20


def trained():
    texts = [line for a in json.loads((ROOT / "examples/data/squad_sample.json").read_text(encoding="utf-8"))["data"]
             for p in a["paragraphs"] for line in p["context"].split(". ")]
    tokenizer = Tokenizer(models.BPE())
    # Without a split: merges reach over words, as where the whole text is one piece.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.train_from_iterator(texts + CODE, trainers.BpeTrainer(
        vocab_size=900, limit_alphabet=70, special_tokens=SPECIAL + BYTES, max_token_length=12, show_progress=False))
    return json.loads(tokenizer.to_str())["model"]


def added(id_, content, **flags):
    return {"id": id_, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": False, **flags}


def specials(**flags):
    return [added(i, name, special=True, **flags) for i, name in enumerate(SPECIAL)]


MODEL = {**trained(), "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "ignore_merges": False}
SIZE = len(MODEL["vocab"])
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
LLAMA2 = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, REPLACE]}
DECODE = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split}


def template(*names):
    single = [{"Sequence": {"id": "A", "type_id": 0}} if name == "A" else {"SpecialToken": {"id": name, "type_id": 0}}
              for name in names]
    tokens = {name: {"id": name, "ids": [SPECIAL.index(name)], "tokens": [name]} for name in names if name != "A"}
    return {"type": "TemplateProcessing", "single": single,
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": tokens}


BASE = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": specials(), "normalizer": LLAMA2,
        "pre_tokenizer": None, "post_processor": template("<s>", "A"), "decoder": {"type": "Sequence", "decoders": [*DECODE, STRIP]},
        "model": MODEL}
EXTRA = [added(SIZE, "<x>", normalized=True), added(SIZE + 1, "[INST]", lstrip=True, rstrip=True, normalized=True),
         added(SIZE + 2, "[/INST]", lstrip=True), added(SIZE + 3, "<right>", rstrip=True, special=True), added(SIZE + 4, "a b")]
# name -> members of tokenizer.json that replace the base's.
VARIANTS = {
    "llama2": {},
    "llama2_normalized": {"added_tokens": specials(normalized=True) + EXTRA},
    "codellama": {"added_tokens": specials() + [added(SIZE + i, f"{SPACE}<{name}>", special=True)
                                                for i, name in enumerate(("PRE", "MID", "SUF", "EOT"))],
                  "post_processor": template("<s>", "A", "</s>")},
    "mistral": {"normalizer": None, "pre_tokenizer": metaspace("first", False), "added_tokens": specials() + EXTRA},
    "always": {"normalizer": None, "pre_tokenizer": metaspace("always", False), "added_tokens": specials(lstrip=True) + EXTRA},
    "split": {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE}},
    "never": {"normalizer": None, "pre_tokenizer": metaspace("never", True), "decoder": {"type": "Sequence", "decoders": DECODE},
              "post_processor": None},
    "replace": {"normalizer": REPLACE, "added_tokens": specials() + EXTRA},
    "composed": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Strip", "strip_left": False, "strip_right": True}, {"type": "NFC"}]},
                 "pre_tokenizer": metaspace("first", False),
                 "added_tokens": specials() + [added(SIZE, "river", single_word=True, normalized=True)]},
}
PARTS = list(" \n\t\r\u00a0.,!?()|'s0123456789ßé") + [
    " ", "  ", "   ", "\r\n", "\n\n", "    ", SPACE, SPACE + " ", " " + SPACE, "<s>", "</s>", " </s>", "<unk>", "<x>", " <x>", "[INST]",
    " [INST] ", "[/INST]", "  [/INST]", "<right>", "<right>  ", "a b", "<PRE>", " <PRE>", SPACE + "<PRE>", SPACE + "<MID>", "<0x41>",
    "Question: ", " the", " of the", "The river", "Москва", "नदी", "河流", "\U0001f600", "\u200b", "\0", "montaña", "    return x", "if (x", "#",
    "e\u0301", "rivers", "e", "th", "in", "an", "river", "mountain", "\u3000"]
BLOCKS = [(0x20, 0x7E)] * 6 + [(0xA0, 0x24F), (0x370, 0x4FF), (0x900, 0x97F), (0x2000, 0x206F), (0x2570, 0x2590), (0x4E00, 0x9FFF),
                               (0x1F300, 0x1FAFF), (0x10000, 0x10FFFF)]


def write(name, value):
    (FOLDER / name).write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


rng = random.Random(7)
texts = ["", " ", "  ", "a", SPACE, "Question: Where does the Danube rise?\nContext: It rises in the Black Forest.\nAnswer:"]
texts += [random_text(rng, PARTS, BLOCKS, 7, 0.75) for _ in range(500)]
tokenizers = {name: Tokenizer.from_str(json.dumps({**BASE, **members})) for name, members in VARIANTS.items()}
write("metaspace.json", BASE)
write("metaspace_variants.json", VARIANTS)
with open(FOLDER / "metaspace_ids.jsonl", "w", encoding="utf-8") as file:
    def line(**row):
        file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    for text in texts:
        line(text=text, ids={name: tokenizer.encode(text).ids for name, tokenizer in tokenizers.items()})
    # Random bytes of the fallback rarely form valid UTF-8.
    for i in range(120):
        ids = [rng.randrange(259 if i % 3 else SIZE) for _ in range(rng.randint(1, 8))]
        if i % 2:
            ids = list(tokenizers["never"].encode(random_text(rng, PARTS, BLOCKS, 7, 0.75)).ids) + ids
        for name in ("llama2", "never"):
            for skip in (False, True):
                line(variant=name, decoded=tokenizers[name].decode(ids, skip_special_tokens=skip), skip=skip, ids=ids)
