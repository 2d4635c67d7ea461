# SPDX-License-Identifier: MIT
"""The error of an export, and reasons in one sentence."""
import re


class ExportError(Exception):
    """A module, directory or option that cannot be exported, in one sentence.

    path: the module's path in the model, as in "model.layers.0.self_attn"; "" where none is known.
    """

    def __init__(self, text, path=""):
        super().__init__(text)
        self.path = path


def first_sentence(error, limit=300):
    """The reason in an exception's text: its first line that says something, without hosts' paths.

    error: an exception. limit: the most characters to return.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not set(line) <= set("=-*~^ ")]
    if lines and lines[0].startswith("Constraints violated"):
        lines = [line.removeprefix("- ") for line in lines[1:] if line.startswith("- ")] or lines
    text = lines[0] if lines else type(error).__name__
    if text.endswith(":") and len(lines) > 1:
        text = f"{text} {lines[1]}"
    text = re.sub(r"(/[\w.+-]+){2,}/", "", text)  # a file's folder says where a host has it
    return text if len(text) <= limit else text[:limit - 3] + "..."
