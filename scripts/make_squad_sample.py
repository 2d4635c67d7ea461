# SPDX-License-Identifier: MIT
"""Writes examples/data/squad_sample.json (SQuAD v1.1 format) from examples/data/sources/squad.txt.

Usage: make_squad_sample.py [repository root]
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
MARK = re.compile(r"\{([^|{}]+)\|([^|{}]+)\}")


def paragraph(text, name):
    context, qas, end = "", [], 0
    for mark in MARK.finditer(text):
        context += text[end:mark.start()]
        qas.append({"id": f"{name}-q{len(qas)}", "question": mark.group(2),
                    "answers": [{"text": mark.group(1), "answer_start": len(context)}]})
        context += mark.group(1)
        end = mark.end()
    context += text[end:]
    assert not set("{|}") & set(context), context
    for qa in qas:
        answer = qa["answers"][0]
        assert context[answer["answer_start"]:].startswith(answer["text"])
        assert qa["question"].endswith("?"), qa
    return {"context": context, "qas": qas}


articles = []
for line in (ROOT / "examples/data/sources/squad.txt").read_text(encoding="utf-8").splitlines():
    if line.startswith("= "):
        articles.append({"title": line[2:], "paragraphs": []})
    elif line and not line.startswith("#"):
        name = f"a{len(articles) - 1}-p{len(articles[-1]['paragraphs'])}"
        articles[-1]["paragraphs"].append(paragraph(line, name))

paragraphs = [p for a in articles for p in a["paragraphs"]]
questions = [q["question"] for p in paragraphs for q in p["qas"]]
assert len(set(questions)) == len(questions), sorted(q for q in questions if questions.count(q) > 1)
out = ROOT / "examples/data/squad_sample.json"
with open(out, "w", encoding="utf-8") as file:
    json.dump({"version": "1.1", "data": articles}, file, ensure_ascii=False, indent=1)
    file.write("\n")
print(f"{out}: {len(articles)} articles, {len(paragraphs)} paragraphs, {len(questions)} questions")
