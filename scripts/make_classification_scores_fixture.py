# SPDX-License-Identifier: MIT
"""Writes tests/unit/metrics/fixtures/classification_scores.json: labels and predictions with scikit-learn's scores of them.

Usage: make_classification_scores_fixture.py > tests/unit/metrics/fixtures/classification_scores.json
"""
import json
import random

import numpy
import sklearn
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_curve, precision_recall_fscore_support


def scored(labels, predictions, classes):
    precision, recall, f1, support = precision_recall_fscore_support(labels, predictions, labels=range(classes), zero_division=0)
    averages = {f"f1_{kind}": float(f1_score(labels, predictions, average=kind, zero_division=0)) for kind in ("macro", "weighted")}
    return {"classes": classes, "labels": labels, "predictions": predictions, "accuracy": float(accuracy_score(labels, predictions)), **averages,
            "precision": precision.tolist(), "recall": recall.tolist(), "f1": f1.tolist(), "support": [int(s) for s in support],
            "confusion": confusion_matrix(labels, predictions, labels=range(classes)).tolist()}


def thresholded(labels, probabilities):
    precision, recall, thresholds = precision_recall_curve(labels, probabilities)
    f1 = 2 * precision * recall / numpy.maximum(precision + recall, 1e-300)
    best = int(numpy.argmax(numpy.round(f1[:-1], 12)))  # of equal ones the first, the lowest threshold
    return {"labels": labels, "probabilities": probabilities, "threshold": float(thresholds[best]), "f1": float(f1[best])}


def main():
    rng = random.Random(7)
    fixture = {"scikit-learn": sklearn.__version__, "scores": [], "thresholds": []}
    for classes in (2, 2, 3, 4, 5, 9):
        for rows in (1, 7, 60):
            known = rng.sample(range(classes), max(1, classes - 1))  # some classes never occur
            labels = [rng.choice(known) for _ in range(rows)]
            predictions = [label if rng.random() < 0.6 else rng.randrange(classes) for label in labels]
            fixture["scores"].append(scored(labels, predictions, classes))
    for rows in (2, 5, 20, 80):
        for digits in (1, 6):  # with ties and without
            labels = [rng.randrange(2) for _ in range(rows - 1)] + [1]
            fixture["thresholds"].append(thresholded(labels, [round(min(1, max(0, rng.gauss(0.4 + 0.2 * y, 0.2))), digits) for y in labels]))
    print(json.dumps(fixture))


main()
