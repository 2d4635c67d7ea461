# SPDX-License-Identifier: MIT
"""SQuAD's official formulas for one answer and one prediction."""
import collections
import re
import string


def normalise(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1_of(answer, prediction, v2):
    wanted, given = normalise(answer).split(), normalise(prediction).split()
    if v2 and not (wanted and given):
        return float(wanted == given)
    common = sum((collections.Counter(wanted) & collections.Counter(given)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(given), common / len(wanted)
    return 2 * precision * recall / (precision + recall)
