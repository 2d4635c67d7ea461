# SPDX-License-Identifier: MIT
"""Which versions of LibTorch a configuration takes, refuses, and says to be untried. Usage: torch_versions.py SOURCE_ROOT CMAKE"""
import pathlib
import subprocess
import sys
import tempfile

ROOT, CMAKE = sys.argv[1:3]
folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera_torch_"))
SCRIPT = folder / "check.cmake"
SCRIPT.write_text(f"""include({ROOT}/cmake/TesseraTorch.cmake)
tessera_torch_version(${{folder}} version)
message(STATUS "version <${{version}}>")
if(version)
  tessera_check_torch(${{version}} ${{folder}} ${{cuda}})
endif()
message(STATUS "taken")
""")
# Where the header is, version, for GPUs, what is said ("" nothing), whether it is taken.
CASES = (("headeronly", "2.11.0", False, "", True),
         ("headeronly", "2.11.0", True, "", True),
         ("csrc/api/include/torch", "2.9.1", False, "", True),
         ("csrc/api/include/torch", "2.9.1", True, "On GPUs tessera was run with LibTorch 2.11 only, not with 2.9.1.", True),
         ("headeronly", "2.15.0", False, "", True),
         ("headeronly", "2.15.0", True, "On GPUs tessera was run with LibTorch 2.11 only, not with 2.15.0.", True),
         ("csrc/api/include/torch", "2.8.0", False, "is too old: tessera needs 2.9 or later", False),
         ("headeronly", "2.99.3", False, "LibTorch 2.99.3 is newer than what tessera was tried with", True),
         ("headeronly", "3.0.0", True, "LibTorch 3.0.0 is newer than what tessera was tried with", True))
failures = 0
for place, version, cuda, text, taken in CASES:
    torch = folder / f"{version}-{cuda}"
    header = torch / "include/torch" / place / "version.h"
    header.parent.mkdir(parents=True)
    numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
    header.write_text("".join(f"#define TORCH_VERSION_{name} {number}\n" for name, number in numbers) + '#define TORCH_VERSION "x"\n')
    (torch / "lib").mkdir()
    (torch / "lib/libtorch_cpu.so").touch()
    run = subprocess.run([CMAKE, f"-Dfolder={torch}", f"-Dcuda={'TRUE' if cuda else 'FALSE'}", "-P", SCRIPT],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = " ".join(run.stdout.split())
    spoken = "CMake" in said  # "CMake Warning", "CMake Error"
    if f"<{version}>" not in said or ("-- taken" in said) != taken or text not in said or spoken != bool(text):
        failures += 1
        print(f"FAILED: {version} for {'GPUs' if cuda else 'CPUs'}: {run.stdout}")
print(f"{len(CASES) - failures} of {len(CASES)} versions as they should be")
sys.exit(1 if failures else 0)
