# SPDX-License-Identifier: MIT
"""The text of program.json."""
import json


def manifest_text(values):
    """The file's text: a line for each key, and for each row of a list."""
    lines = []
    for key, value in values.items():
        if isinstance(value, list) and value:
            rows = ",\n".join("  " + json.dumps(row) for row in value)
            lines.append(f" {json.dumps(key)}: [\n{rows}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
