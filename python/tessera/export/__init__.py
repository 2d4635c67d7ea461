# SPDX-License-Identifier: MIT
"""Exports PyTorch modules as programs that tessera trains without Python. Needs torch; models of the Hub need transformers.

Documentation: docs/guides/export.md. The command is python -m tessera.export.
"""
from .errors import ExportError

__all__ = ["ExportError", "export_module", "export_pretrained"]


def __getattr__(name):
    if name in ("export_module", "export_pretrained"):
        from . import exporting

        return getattr(exporting, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
