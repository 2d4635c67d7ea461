# SPDX-License-Identifier: MIT
"""Writes tests/unit/data/fixtures/{tokenizer_variants.json,tokenizer_ids.jsonl}: what Hugging Face tokenizers makes of some
thousands of strings, with examples/data/tokenizer and with variants of it (the patterns of GPT-2, Llama 3, Qwen and Mistral, NFC, added
tokens that strip white space or stand alone, a template, ignore_merges).

Needs the `tokenizers` package. Usage: make_tokenizer_fixture.py [repository root]
"""
import json
import pathlib
import random
import sys

from tokenizers import Tokenizer

from fixture_text import random_text

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
BASE = json.loads((ROOT / "examples/data/tokenizer/tokenizer.json").read_text(encoding="utf-8"))
FOLDER = ROOT / "tests/unit/data/fixtures"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def added(index, content, **flags):
    base = {"id": len(BASE["model"]["vocab"]) + index, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": False}
    return {**base, **flags}


EXTRA = [added(0, "<x>", normalized=True), added(1, "<xx>", special=True), added(2, "<both>", lstrip=True, rstrip=True),
         added(3, "<left>", lstrip=True, normalized=True), added(4, "नदी")]
WORDS = [added(0, "<|im_start|>", special=True), added(1, "word", single_word=True), added(2, "e\u0301a", normalized=True),
         added(3, "<tool>", single_word=True, normalized=True, lstrip=True), added(4, "e\u0301x")]
TEMPLATE = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [id_], "tokens": [name]} for name, id_ in (("<s>", 1), ("</s>", 2))}}
def split(pattern):
    return {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                                                  BYTE_LEVEL]}


# name -> members of tokenizer.json that replace the shipped ones; "ignore_merges" goes into the model.
VARIANTS = {
    "bloom": {},
    "gpt2": {"pre_tokenizer": {**BYTE_LEVEL, "use_regex": True}, "added_tokens": BASE["added_tokens"] + EXTRA},
    "llama3": {"pre_tokenizer": split(LLAMA3),
               "post_processor": {"type": "Sequence", "processors": [BASE["post_processor"], TEMPLATE]},
               "ignore_merges": True},
    "qwen": {"normalizer": {"type": "NFC"}, "pre_tokenizer": split(QWEN), "added_tokens": BASE["added_tokens"] + WORDS},
    "tekken": {"pre_tokenizer": split(TEKKEN)},
    "steps": {"normalizer": {"type": "Sequence", "normalizers": [
                  {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "NFC"},
                  {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
                  {"type": "Replace", "pattern": {"String": "ab"}, "content": ""}]},
              "pre_tokenizer": split(QWEN), "added_tokens": BASE["added_tokens"] + WORDS},
}


def build(members):
    members = dict(members)
    spec = {**BASE, "model": {**BASE["model"], "ignore_merges": members.pop("ignore_merges", False)}, **members}
    return Tokenizer.from_str(json.dumps(spec))


BLOCKS = [(0x20, 0x7E)] * 6 + [
    (0x09, 0x0D), (0xA0, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF),
    (0x900, 0x97F), (0x980, 0x9FF), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1680, 0x1680), (0x2000, 0x206F), (0x2150, 0x218F),
    (0x3000, 0x303F), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFF00, 0xFFEF), (0x1F300, 0x1FAFF),
    (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F), (0x10000, 0x10FFFF)]
PARTS = list(" \n\t\r\u00a0\u2009.,!?…。，、।۔،()|[]'s0123456789ßﬀŉſ") + [
    "'s", "'S", "'ſ", "'re", "'LL", "'Ve", " 's", "\r\n", "  ", "\n\n", "</s>", "<pad>", "<x>", "<xx>", "<both>", "<left>",
    " <both> ", "  <left>  ", "नदी", "\u3000", "\u0085", "\u2028", "\u180e", "\u200b", "\ufeff", "\0", "Question: ", " the",
    "Москва", "المدينة", "河流", "산은", "ภูเขา", "montaña", "flüsse", "2061", " 27.3", "don't", "WE'LL"]


COMPOSED = [(0x20, 0x7E)] * 4 + [
    (0xC0, 0x24F), (0x300, 0x36F), (0x300, 0x36F), (0x590, 0x5FF), (0x900, 0x9FF), (0xB00, 0xBFF), (0xF00, 0xFFF), (0x1100, 0x11FF),
    (0x1E00, 0x1FFF), (0x2100, 0x214F), (0x3040, 0x30FF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB1D, 0xFB4F), (0x1D150, 0x1D170),
    (0x2F800, 0x2FA1D)]
COMPOSED_PARTS = PARTS + [
    "e\u0301", "E\u0301", "a\u0323\u0302", "a\u0302\u0323", "\u0301", "\u0344", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u2126", "\u212b",
    "\u0915\u093c", "\u0958", "\u05e9\u05c1\u05bc", "\ufb2c", "<|im_start|>", "word", " word", "words", "_word", "word.", "éa", "e\u0301a",
    "camelCase", "HTTPServer", "ABชAB", "ǅaǅ", "a/", "//\n", "'S", "ªʰX", "<tool>", " <tool> ", "x<tool>", "e\u0301x", "``", "ab", " ab"]


rng = random.Random(3)
texts = ["", " ", "a", "Question: Where does the Danube rise?\nContext: The Danube rises in the Black Forest.\nAnswer:"]
texts += [p["context"] for a in json.loads((ROOT / "examples/data/squad_sample.json").read_text(encoding="utf-8"))["data"][:3]
          for p in a["paragraphs"][:1]]
texts += [random_text(rng, PARTS, BLOCKS, 6, 0.6) for _ in range(2200)]
models = {name: build(members) for name, members in VARIANTS.items()}
FOLDER.mkdir(parents=True, exist_ok=True)
with open(FOLDER / "tokenizer_variants.json", "w", encoding="utf-8") as file:
    json.dump(VARIANTS, file, ensure_ascii=False, indent=1)
    file.write("\n")
with open(FOLDER / "tokenizer_ids.jsonl", "w", encoding="utf-8") as file:
    def line(**row):
        file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    for i, text in enumerate(texts):
        # Every string under BLOOM's pattern, every second one under each of the others.
        for name in (["bloom", "gpt2"] if i % 2 else ["bloom", "llama3"]):
            line(variant=name, text=text, ids=models[name].encode(text).ids)
    # Random ids rarely form valid UTF-8: what decoding puts in the place of broken sequences.
    for i in range(300):
        ids = [rng.randrange(4, 260 if i % 2 else 2000) for _ in range(rng.randint(1, 8))] + [rng.randrange(4)]
        for skip in (False, True):
            line(variant="bloom", decoded=models["bloom"].decode(ids, skip_special_tokens=skip), skip=skip, ids=ids)
    for _ in range(1200):
        text = random_text(rng, COMPOSED_PARTS, COMPOSED, 7, 0.6)
        for name in ("qwen", "tekken", "steps"):
            line(variant=name, text=text, ids=models[name].encode(text).ids)
