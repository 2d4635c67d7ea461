# SPDX-License-Identifier: MIT
"""Exports of modules in memory, for Model.from_module(); their directories live as long as the process."""
import tempfile

_directories = []


def exported(module, example, dynamic=None, task="module", dtypes=("fp32",)):
    """The directory of the module's program and values. Each rank writes its own; see Model.from_module()."""
    from tessera.export import export_module

    folder = tempfile.TemporaryDirectory(prefix="tessera_module_")
    _directories.append(folder)
    if dynamic is None:
        dynamic = {name: {0: "batch"} for name in example}
    export_module(module, example, dynamic, folder.name + "/program", dtypes=dtypes, task=task)
    return folder.name + "/program"
