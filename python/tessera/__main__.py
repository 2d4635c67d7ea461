# SPDX-License-Identifier: MIT
"""python -m tessera --cmake-prefix | --version"""
import os
import sys

from tessera import __version__, _libtorch

if sys.argv[1:] == ["--version"]:
    print(f"tessera {__version__}, LibTorch {_libtorch.BUILT_WITH}")
elif sys.argv[1:] == ["--cmake-prefix"] and os.path.exists(os.path.join(_libtorch.HERE, "lib", "cmake")):
    print(_libtorch.HERE)
else:
    print("usage: python -m tessera --version | --cmake-prefix   (the second where a wheel was installed: for CMAKE_PREFIX_PATH)",
          file=sys.stderr)
    sys.exit(2)
