# SPDX-License-Identifier: MIT
# Untried: no host of the tests has Spack. Put into a repository of packages as packages/tessera/package.py.
from spack.package import *


class Tessera(CMakePackage, CudaPackage):
    """Distributed-training strategies on LibTorch: data parallel, ZeRO, FSDP, offload, pipelines and tensor parallelism,
    as programs and as a C++20 library."""

    # homepage, git: of the repository that this file came with.
    license("MIT")

    version("main", branch="main")

    variant("mpi", default=True, description="The MPI transport")
    variant("hwloc", default=True, description="Memory and threads near a GPU")
    variant("python", default=False, description="The Python module")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("abseil-cpp cxxstd=20")
    depends_on("highway")
    depends_on("nlohmann-json", type="build")
    depends_on("xxhash", type="build")
    depends_on("py-torch@2.9:2.15")
    depends_on("py-torch~cuda", when="~cuda")
    depends_on("hwloc", when="+hwloc")
    depends_on("mpi", when="+mpi")
    depends_on("py-nanobind@2.9:", type="build", when="+python")
    depends_on("python@3.10:", type=("build", "run"), when="+python")
    # GPUs: kernels from compute capability 8.0 on, and the NCCL and cuDNN that torch itself uses.
    depends_on("cuda@13:", when="+cuda")
    depends_on("nccl", when="+cuda")
    depends_on("cudnn@9:", when="+cuda")
    depends_on("py-torch@2.11+cuda+nccl", when="+cuda")
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPUs: cuda_arch=80,90 for example")
    for _arch in ("80", "86", "89", "90", "100", "120"):
        depends_on(f"py-torch cuda_arch={_arch}", when=f"+cuda cuda_arch={_arch}")
    conflicts("%gcc@:10", msg="C++20 needs GCC 11 or later")

    generator("ninja")

    def cmake_args(self):
        torch = join_path(self.spec["py-torch"].package.module.python_platlib, "torch")
        args = [
            self.define("TESSERA_TORCH_ROOT", torch),
            self.define("TESSERA_WITH_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
            self.define("TESSERA_WITH_MPI", "ON" if self.spec.satisfies("+mpi") else "OFF"),
            self.define("TESSERA_WITH_HWLOC", "ON" if self.spec.satisfies("+hwloc") else "OFF"),
            self.define_from_variant("TESSERA_BUILD_PYTHON", "python"),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("TESSERA_CUDA_ARCHITECTURES", ";".join(self.spec.variants["cuda_arch"].value)))
        return args
