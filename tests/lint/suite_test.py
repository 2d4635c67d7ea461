"""Each rule of suite.py must turn red on a list of entries that breaks it, and stay green on one that does not."""
import sys

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


def main():
    failed = 0
    for entries, expected in CASES:
        found = set(suite.violations({"tests": entries}, suite.ALWAYS | {"gpu"}))
        good = (not found) if expected is None else (len(found) == 1 and expected in found.pop())
        if not good:
            failed += 1
            print(f"{[e['name'] for e in entries]}: expected {expected!r}, found {found}")
    print(f"{len(CASES) - failed} of {len(CASES)} cases as expected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
