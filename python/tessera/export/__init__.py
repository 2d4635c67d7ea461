# SPDX-License-Identifier: MIT
"""Exports PyTorch modules as programs that tessera trains without Python. Needs torch; models of the Hub need transformers.

Documentation: docs/guides/export.md. The command is python -m tessera.export.
"""
from .errors import ExportError

__all__ = ["ExportError", "export_module", "export_pretrained"]


def __getattr__(name):
    if name == "export_module":
        from .own_module import export_module

        return export_module
    if name == "export_pretrained":
        from .pretrained import export_pretrained

        return export_pretrained
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
