# SPDX-License-Identifier: MIT
"""environment.py must find a variable in every kind of file that reads one, and name what the page lacks or has too much."""
import pathlib
import sys
import tempfile

import environment

# (path, text, the variable that it reads; None: none)
READS = [
    ("lib/core/a.cpp", 'const char* a = std::getenv("TESSERA_A");\n', "TESSERA_A"),
    ("backends/zero/a.cpp", 'std::getenv(\n    "TESSERA_A");\n', "TESSERA_A"),
    ("lib/run/a.cpp", 'setenv("CUBLAS_X", ":4096:8", 0);\n', "CUBLAS_X"),
    ("lib/comm/a.cpp", 'const auto text = environment("TESSERA_A");\n', "TESSERA_A"),
    ("lib/comm/launch/a.cpp", 'launch.host = variables.text("OMPI_MCA_orte_a");\n', "OMPI_MCA_orte_a"),
    ("lib/compare/a.cpp", 'environment_["OMPI_MCA_a"] = "1";\n', "OMPI_MCA_a"),
    ("lib/comm/launch/launcher.cpp", '{"srun", {"SLURM_STEP_ID", nullptr}},\n', "SLURM_STEP_ID"),
    ("lib/data/a.cpp", 'fail("the type CAUSAL_LM", "SEQ_CLS");\n', None),
    ("scripts/a.sh", 'jobs=${TESSERA_JOBS:-2}\n', "TESSERA_JOBS"),
    ("scripts/a.sh", 'local jobs=$PWD\n', None),
    ("scripts/a.py", 'os.environ.get("TESSERA_A", "")\n', "TESSERA_A"),
    ("cmake/a.cmake", 'set(root $ENV{Torch_ROOT})\n', "Torch_ROOT"),
]
# (the page, what a file reads, a piece of the complaint; None: no complaint)
PAGES = [
    ("`TESSERA_A`", "TESSERA_A", None),
    ("TESSERA_A", "TESSERA_A", "reads TESSERA_A, which docs/reference/environment.md lacks"),
    ("`TESSERA_A`, `TESSERA_B`", "TESSERA_A", "has TESSERA_B, which nothing reads"),
    ("`TESSERA_A`, `NCCL_*`", "TESSERA_A", None),
    ("`SLURM_*`", "SLURM_", None),
    ("`SLURM_A`", "SLURM_", "reads SLURM_, which"),
]


def tree(folder: str, files: dict[str, str]) -> pathlib.Path:
    root = pathlib.Path(folder)
    for path, text in ({"CMakeLists.txt": ""} | files).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


failures = []
for path, text, wanted in READS:
    with tempfile.TemporaryDirectory() as folder:
        found = set(environment.read_in(tree(folder, {path: text})))
        if found != ({wanted} if wanted else set()):
            failures.append(f"{path} {text!r}: {found}, not {wanted}")
for page, name, wanted in PAGES:
    with tempfile.TemporaryDirectory() as folder:
        said = environment.problems(tree(folder, {environment.PAGE: page, "lib/run/child_process.cpp": f'getenv("{name}")'}))
        if (wanted is None) != (not said) or (wanted and not any(wanted in line for line in said)):
            failures.append(f"the page {page!r} with {name}: {said}, not {wanted}")
print("\n".join(failures) or f"{len(READS) + len(PAGES)} cases")
sys.exit(1 if failures else 0)
