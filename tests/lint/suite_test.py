# SPDX-License-Identifier: MIT
"""Each rule of suite.py must turn red on a list of entries that breaks it, and stay green on one that does not."""
import sys

import cases
import suite


def entry(name, labels=("unit",), limit=300.0, **more):
    properties = {"LABELS": list(labels), "TIMEOUT": limit, **more}
    return {"name": name, "properties": [{"name": k, "value": v} for k, v in properties.items() if v]}


GOOD = [entry(label, [label]) for label in sorted(suite.ALWAYS)]
# (entries, a piece of the expected message; None: the list is fine)
CASES = [
    (GOOD, None),
    (GOOD + [entry("two", ["unit", "gpu"])], None),
    (GOOD + [entry("bare", [])], "bare: no label"),
    (GOOD + [entry("typo", ["unti"])], "unknown label 'unti'"),
    (GOOD + [entry("endless", limit=0)], "endless: no time limit"),
    (GOOD + [entry("asleep", DISABLED=True)], "asleep: disabled"),
    (GOOD + [entry("twin"), entry("twin")], "twin: 2 entries"),
    (GOOD[:-1], f"no entry with the label '{sorted(suite.ALWAYS)[-1]}'"),
]


def found(entries):
    return sorted(set(suite.violations({"tests": entries}, suite.ALWAYS | {"gpu"})))


if __name__ == "__main__":
    sys.exit(cases.check([([e["name"] for e in entries], found(entries), expected) for entries, expected in CASES]))
