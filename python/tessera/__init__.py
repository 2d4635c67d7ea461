# SPDX-License-Identifier: MIT
"""Distributed training of language models: DDP, ZeRO, FSDP, offload, pipelines and tensor parallelism.

Documentation: docs/library/python.md. torch need not be imported, nor be there; where it is, both use one LibTorch.
"""
from tessera import _libtorch

_libtorch.load()

from tessera._tessera import ClipResult, Error, Job, LrSchedule, Model, StepResult, Strategy  # noqa: E402

__version__ = _libtorch.TESSERA_VERSION
__all__ = ["ClipResult", "Error", "Job", "LrSchedule", "Model", "StepResult", "Strategy"]
