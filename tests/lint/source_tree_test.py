# SPDX-License-Identifier: MIT
"""Each rule of source_tree.py must turn red on a file that breaks it, and stay green on one that does not."""
import pathlib
import sys
import tempfile

import cases
import include_graph
import source_tree

ONCE = "#pragma once\n"
# (path, text, a piece of the expected message; None: the file is fine)
CASES = [
    ("lib/core/a.cpp", '#include "tessera/comm/communicator.h"\n', "core may not include comm"),
    ("lib/comm/a.cpp", '#include "tessera/core/error.h"\n', None),
    ("lib/metrics/a.cpp", '#include "tessera/train/trainer.h"\n', "metrics may not include train"),
    ("include/tessera/optim/a.h", ONCE + '#include "tessera/backends/strategy.h"\n', "optim may not include backends"),
    ("backends/zero/a.cpp", '#include "lib/train/loop.h"\n', "backends may not include train"),
    ("backends/zero/a.cpp", '#include "tessera/plan/dry_step.h"\n', "backends may not include plan"),
    ("lib/plan/a.cpp", '#include "tessera/backends/parallel_config.h"\n', None),
    ("backends/zero/a.cpp", '#include "tessera/sharding/flat.h"\n', None),
    ("lib/models/a.cpp", '#include "tessera/data/loader.h"\n', "models may not include data"),
    ("examples/a.cpp", '#include "tessera/train/trainer.h"\n', None),
    ("lib/comm/tcp/a.cpp", '#include "lib/comm/launch/rendezvous.h"\n', "comm/tcp may not include comm/launch"),
    ("lib/comm/tcp/a.cpp", '#include "lib/comm/transport.h"\n#include "lib/comm/control/wire.h"\n', None),
    ("lib/comm/tcp/a.cpp", '#include "lib/comm/mpi/mpi_runtime.h"\n', "comm/tcp may not include comm/mpi"),
    ("lib/comm/control/a.cpp", '#include "lib/comm/operation_log.h"\n', "comm/control may not include comm "),
    ("lib/comm/control/a.cpp", '#include "tessera/comm/control_channel.h"\n', None),
    ("lib/comm/a.cpp", '#include "tessera/comm/launch.h"\n', "comm may not include comm/launch"),
    ("lib/comm/launch/a.cpp", '#include "tessera/comm/local.h"\n#include "lib/comm/control/hub.h"\n', None),
    ("include/tessera/comm/communicator.h", ONCE + '#include "tessera/comm/bootstrap.h"\n', "comm may not include comm/launch"),
    ("include/tessera/core/a.h", ONCE + '#include "lib/core/file.h"\n', "public headers only"),
    ("include/tessera/tessera.h", ONCE + '#include "tessera/train/trainer.h"\n', None),
    ("lib/train/a.cpp", '#include "tessera/tessera.h"\n', "train may not include tessera.h"),
    ("examples/quickstart/a.cpp", '#include "lib/run/run.h"\n', "public headers only"),
    ("examples/a/main.cpp", '#include "lib/run/run.h"\n', None),
    ("examples/a/main.cpp", '#include "tests/support/test.hpp"\n', "examples may not include tests/support"),
    ("benchmarks/a.cpp", '#include "lib/run/run.h"\n', None),
    ("benchmarks/a.cpp", '#include "lib/compare/compare.h"\n', "benchmarks may not include compare"),
    ("lib/testing/a.cpp", '#include "tests/support/test.hpp"\n', "testing may not include tests/support"),
    ("tests/unit/core/a.cpp", '#include "lib/core/file.h"\n#include "tests/support/test.hpp"\n', None),
    ("tests/unit/core/a.cpp", '#include "tessera/train/trainer.h"\n', "tests/unit/core may not include train"),
    ("tests/unit/optim/a.cpp", '#include "tests/unit/ops/gradients.h"\n', "tests/unit/optim may not include tests/unit/ops"),
    ("tests/support/a.cpp", '#include "tests/parity/oracle.h"\n', "tests/support may not include tests/parity"),
    ("tests/attic/a.cpp", '#include "tessera/core/error.h"\n', "not in the include order"),
    ("tests/unit/core/a.cpp", '#include "near.h"\n', "no path from the top"),
    ("lib/core/a.cpp", "double x = std::strtod(text, &end);\n", "parse_number()"),
    ("python/a.cpp", "double x = std::stod(text);\n", "parse_number()"),
    ("lib/core/a.cpp", "int x = std::stoi(text);  // std::stod(text)\n", None),
    ("lib/core/a.cpp", 'std::snprintf(text, sizeof(text),\n              "%s %+8.2f", a, b);\n', "printed()"),
    ("lib/core/a.cpp", 'std::snprintf(text, sizeof(text), "%d", a); x = "50 %f";\n', None),
    ("examples/a.cpp", 'std::printf("%.6f", loss);\n', None),
    ("backends/a.cpp", "std::ostringstream out;\nout << 1.5;\n", "imbue"),
    ("backends/a.cpp", "std::ostringstream out;\n  out.imbue(std::locale::classic());\n", None),
    ("lib/core/a.cpp", "localtime_r(&now, &parts);\n", "time zone"),
    ("lib/core/log.cpp", "localtime_r(&now, &parts);\n", None),
    ("lib/core/a.cpp", 'std::strftime(text, sizeof text, "%B", &utc);\n', "locale"),
    ("lib/core/a.cpp", 'std::strftime(text, sizeof text, "%F %T UTC", &utc);\n', None),
    ("lib/attic/a.cpp", '#include "tessera/core/error.h"\n', "not in the include order"),
    ("include/tessera/core/a.h", ONCE + "#include <torch/torch.h>\n", "not <torch/torch.h>"),
    ("include/tessera/core/a.h", ONCE + "#ifdef TESSERA_HAS_CUDA\n#endif\n", "no #if on CUDA"),
    ("include/tessera/core/a.h", "int x;\n", "#pragma once"),
    ("lib/ops/cuda/a.cu", "#include <ATen/ATen.h>\n", "raw pointers"),
    ("lib/ops/cuda/a.cu", "#include <cuda_bf16.h>\n", None),
    ("lib/ops/a.cpp", "#include <cuda_runtime.h>\n", "only lib/ops/cuda"),
    ("tests/gpu/a_test.cpp", "#include <c10/cuda/CUDAFunctions.h>\n", "*_cuda.* of tests"),
    ("tests/gpu/a_cuda.cpp", "#include <c10/cuda/CUDAFunctions.h>\n", None),
    ("lib/comm/local/a.cpp", "#include <mpi.h>\n", "only lib/comm/mpi"),
    ("tests/unit/a.cpp", 'TEST_CASE("a", "[.]") {}\n', "no hidden test cases"),
    ("tests/unit/a.cpp", 'TEST_CASE("a", "[x][!mayfail]") {}\n', "no hidden test cases"),
    ("tests/unit/a.cpp", 'TEST_CASE("a", "[!shouldfail]") {}\n', None),
    ("lib/core/CMakeLists.txt", "include(${CMAKE_SOURCE_DIR}/cmake/a.cmake)\n", "PROJECT_SOURCE_DIR, not CMAKE_SOURCE_DIR"),
    ("cmake/a.cmake", "set(bin ${CMAKE_BINARY_DIR}/bin)\n", "PROJECT_BINARY_DIR"),
    ("CMakeLists.txt", "set(bin ${PROJECT_BINARY_DIR}/bin)\n", None),
    ("tests/package/client/CMakeLists.txt", "set(bin ${CMAKE_BINARY_DIR}/bin)\n", None),
    ("lib/core/CMakeLists.txt", "tessera_library(a\n  SOURCES\n    a.cpp\n    cpu/b.cpp\n  LINK b)\n", None),
    ("lib/core/CMakeLists.txt", "tessera_library(a SOURCES a.cpp cpu/b.cpp LINK b)\n", "sources stand one a line"),
    ("lib/core/CMakeLists.txt", "set_source_files_properties(a.cpp b.cpp PROPERTIES X 1)\n", None),
    ("lib/core/a.cpp", "int x;\n" * 401, "401 lines"),
    ("lib/core/a.cpp", "int x;\n" * 400, None),
    ("lib/core/a.cpp", "// SPDX-License-Identifier: MIT\n" + "int x;\n" * 400, None),
]


LICENCE = "SPDX-License-Identifier: MIT"
UNLICENSED = [
    ("lib/core/a.cpp", "int x;\n", "the first line of a file"),
    ("lib/core/a.cpp", f"// {LICENCE}\nint x;\n", None),
    ("scripts/a.sh", f"#!/bin/sh\n# {LICENCE}\n", None),
    ("scripts/a.sh", f"#!/bin/sh\nset -e\n# {LICENCE}\n", "the first line of a file"),
    ("cmake/a.cmake", "set(x 1)\n", "the first line of a file"),
    ("tests/programs/a.py", "import os\n", "the first line of a file"),
]


def found(path, text, rules=source_tree.violations):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return list(rules(root))


def drawn_badly():
    """An arrow that follows from others is drawn, or one is missing."""
    edges = {"a": {"b", "c"}, "b": {"c"}, "d": {"c"}, "comm": set(), "tests": {"a"}}
    drawn, shown = include_graph.picture(edges), include_graph.svg(edges)
    good = "a --> b\n" in drawn and "b --> c\n" in drawn
    return [] if good and shown.count("<path d=") == 3 and shown.count("<rect") == 5 and ">tests<" not in shown else [drawn, shown]


if __name__ == "__main__":
    planted = [(f"{path}: {text[:60]!r}", found(path, text), expected) for path, text, expected in CASES]
    planted += [(f"{path}: {text[:60]!r}", found(path, text, source_tree.unlicensed), expected) for path, text, expected in UNLICENSED]
    sys.exit(cases.check([*planted, ("the picture", drawn_badly(), None)]))
