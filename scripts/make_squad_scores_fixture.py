# SPDX-License-Identifier: MIT
"""Writes tests/unit/data/fixtures/squad_scores.json: texts, answers and predictions with what SQuAD's official formulas make of them.

With the official scripts as arguments every number is also compared with theirs.
Usage: make_squad_scores_fixture.py [evaluate-v1.1.py evaluate-v2.0.py] > tests/unit/data/fixtures/squad_scores.json
"""
import hashlib
import importlib.util
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/programs"))
from squad_oracle import f1_of, normalise  # noqa: E402


def exact_of(answer, prediction, _v2):
    return float(normalise(answer) == normalise(prediction))


def score(measure, answers, prediction, v2):
    if v2:
        answers = [a for a in answers if normalise(a)] or [""]
    return max(measure(a, prediction, v2) for a in answers)


def means(scores, prefix=""):
    if not scores:
        return {}
    exact, f1 = ([s[i] for s in scores] for i in (0, 1))
    return {prefix + "exact": 100.0 * sum(exact) / len(exact), prefix + "f1": 100.0 * sum(f1) / len(f1), prefix + "total": len(f1)}


def best(raw, answers, predictions, probabilities):
    current = top = sum(not a for a in answers)
    threshold = 0.0
    for i in sorted(range(len(raw)), key=lambda i: probabilities[i]):
        current += raw[i] if answers[i] else -1 if predictions[i] else 0
        if current > top:
            top, threshold = current, probabilities[i]
    return 100.0 * top / len(raw), threshold


def evaluate_v1(answers, predictions):
    scores = [[score(m, a, p, False) for m in (exact_of, f1_of)] for a, p in zip(answers, predictions)]
    result = means(scores)
    return {"exact_match": result["exact"], "f1": result["f1"]}


def evaluate_v2(answers, predictions, probabilities, threshold):
    raw = [[score(m, a, p, True) for m in (exact_of, f1_of)] for a, p in zip(answers, predictions)]
    scores = [[float(not a)] * 2 if p > threshold else r for a, p, r in zip(answers, probabilities, raw)]
    result = means(scores)
    result |= means([s for a, s in zip(answers, scores) if a], "HasAns_")
    result |= means([s for a, s in zip(answers, scores) if not a], "NoAns_")
    for i, name in enumerate(("exact", "f1")):
        result[f"best_{name}"], result[f"best_{name}_thresh"] = best([r[i] for r in raw], answers, predictions, probabilities)
    return result


WORDS = ["the", "The", "THE", "a", "A", "an", "An", "sea", "Black", "Fluß", "STRASSE", "Ärger", "İstanbul", "ΟΔΟΣ", "ΣΑΣ", "Ⅷ", "𝔸", "Ⱥ",
         "na\u00efve", "nai\u0308ve", "a\u0301", "the\u200d", "42", "4.2", "٤٢", "½", "b.c.", "can't", "co-op", "U.S.A.", "«the»", "“an”", "a_b",
         "$5", "東京", "the東京", "日", "an,", "(a)", "a-the-an", "...", "!", "—", "…", "\u1c80", "\U00010400", "Džep"]
SPACES = [" ", " ", " ", "  ", "\t", "\n", "\u00a0", "\u2003", "\u3000", "\x1c", "\x1f", "\x85", "\u200b"]


def text_of(rng, most):
    text = ""
    for _ in range(rng.randrange(most + 1)):
        text += rng.choice(WORDS) + rng.choice(SPACES)
    return text


def random_text(rng):
    points = [rng.choice([rng.randrange(0x20, 0x7F), rng.randrange(0x80, 0x600), rng.randrange(0x1C80, 0x2FFF), rng.randrange(0xE000, 0x110000)])
              for _ in range(rng.randrange(12))]
    return "".join(map(chr, points))


def near(rng, answers):
    """A prediction that may be right."""
    if not answers:
        return rng.choice(["", "", text_of(rng, 2)])
    words = rng.choice(answers).split(" ")
    kind = rng.randrange(5)
    if kind == 0:
        return text_of(rng, 3)
    if kind == 1:
        return " ".join(words[:max(1, len(words) // 2)])
    if kind == 2:
        return ("the " + " ".join(words) + "!").upper()
    return " ".join(words) + rng.choice(["", " sea", "."])


def questions(rng, count, without):
    answers = [[] if rng.random() < without else [text_of(rng, 4) or "x" for _ in range(rng.randrange(1, 4))] for _ in range(count)]
    return answers, [near(rng, a) for a in answers]


def digest(texts):
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def load(path):
    spec = importlib.util.spec_from_file_location("official", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_official(answers):
    return [{"paragraphs": [{"qas": [{"id": str(i), "answers": [{"text": t} for t in a]} for i, a in enumerate(answers)]}]}]


def compare(fixture, v1_path, v2_path):
    v1, v2 = load(v1_path), load(v2_path)
    for text, normalised in fixture["normalised"]:
        assert normalised == v1.normalize_answer(text) == v2.normalize_answer(text)
    for case in fixture["v1"]:
        assert case["result"] == v1.evaluate(as_official(case["answers"]), {str(i): p for i, p in enumerate(case["predictions"])})
    for case in fixture["v2"]:
        data, predictions, probabilities = as_official(case["answers"]), *({str(i): v for i, v in enumerate(case[k])} for k in ("predictions", "probabilities"))
        has = v2.make_qid_to_has_ans(data)
        raw = v2.get_raw_scores(data, predictions)
        exact, f1 = (v2.apply_no_ans_threshold(s, probabilities, has, case["threshold"]) for s in raw)
        result = v2.make_eval_dict(exact, f1)
        for prefix, wanted in (("HasAns", True), ("NoAns", False)):
            if ids := [k for k, v in has.items() if v == wanted]:
                v2.merge_eval(result, v2.make_eval_dict(exact, f1, qid_list=ids), prefix)
        v2.find_all_best_thresh(result, predictions, *raw, probabilities, has)
        assert case["result"] == dict(result)


def main(official):
    rng = random.Random(13)
    points = [chr(p) for p in range(0x110000) if not 0xD800 <= p < 0xE000]
    texts = ["", "a", "the", "a the an"] + [text_of(rng, 6) for _ in range(200)] + [random_text(rng) for _ in range(200)]
    fixture = {
        "python": sys.version.split()[0],
        # Of every code point, each line one: lower case beside a sigma, and normalised in a text.
        "lower_sha256": digest(("A" + c + "\u03a3" + c).lower() for c in points),
        "normalised_sha256": digest(normalise("Xa" + c + "the" + c + " An") for c in points),
        "normalised": [[t, normalise(t)] for t in texts],
        "v1": [], "v2": []}
    for _ in range(12):
        answers, predictions = questions(rng, rng.randrange(1, 20), 0)
        fixture["v1"].append({"answers": answers, "predictions": predictions, "result": evaluate_v1(answers, predictions)})
    for i in range(24):
        answers, predictions = questions(rng, rng.randrange(1, 20), (0, 0.3, 0.6, 1)[i % 4])
        # Ties are likely; a threshold of 1 changes nothing.
        probabilities = [round(rng.random() if a else 0.3 + rng.random() * 0.7, 1) for a in answers]
        threshold = (1.0, 0.5)[i // 4 % 2]
        fixture["v2"].append({"answers": answers, "predictions": predictions, "probabilities": probabilities, "threshold": threshold,
                              "result": evaluate_v2(answers, predictions, probabilities, threshold)})
    if official:
        compare(fixture, *official)
    print(json.dumps(fixture, indent=0))


main(sys.argv[1:])
