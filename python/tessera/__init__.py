# SPDX-License-Identifier: MIT
"""Distributed training of language models: DDP, ZeRO, FSDP, offload, pipelines and tensor parallelism.

Documentation: docs/library/python.md. torch need not be imported, nor be there; where it is, both use one LibTorch.
tessera.export writes PyTorch modules as programs; it works in a clone, too, where the module is not built.
"""
import importlib.util

__all__ = ["ClipResult", "Error", "Job", "LrSchedule", "Model", "StepResult", "Strategy", "export_module", "export_pretrained"]

if importlib.util.find_spec("tessera._libtorch"):
    from tessera import _libtorch

    _libtorch.load()

    from tessera._tessera import ClipResult, Error, Job, LrSchedule, Model, StepResult, Strategy  # noqa: E402

    __version__ = _libtorch.TESSERA_VERSION


def __getattr__(name):
    if name in ("export_module", "export_pretrained"):
        from tessera import export

        return getattr(export, name)
    if name in __all__:
        raise ImportError(f"tessera.{name} needs tessera's module, which is not built here (docs/library/python.md); tessera.export works without it")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
