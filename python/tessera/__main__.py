# SPDX-License-Identifier: MIT
"""python -m tessera --version | --share | --cmake-prefix"""
import os
import sys

from tessera import __version__, _libtorch

FOLDERS = {"--share": os.path.join(_libtorch.HERE, "share", "tessera"), "--cmake-prefix": _libtorch.HERE}
MARKS = {"--share": "examples", "--cmake-prefix": os.path.join("lib", "cmake")}
word = " ".join(sys.argv[1:])
if word == "--version":
    print(f"tessera {__version__}, LibTorch {_libtorch.BUILT_WITH}")
elif word in FOLDERS and os.path.exists(os.path.join(FOLDERS[word], MARKS[word])):
    print(FOLDERS[word])
elif word in FOLDERS:
    print(f"python -m tessera {word}: this module was not installed from a wheel; its examples, scripts and CMake package are in the "
          "clone or prefix that it comes from", file=sys.stderr)
    sys.exit(2)
else:
    print("usage: python -m tessera --version | --share | --cmake-prefix\n"
          "  --share         of a wheel: the folder that holds examples/ and scripts/\n"
          "  --cmake-prefix  of a wheel: the folder for CMAKE_PREFIX_PATH", file=sys.stderr)
    sys.exit(2)
