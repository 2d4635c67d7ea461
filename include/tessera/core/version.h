// SPDX-License-Identifier: MIT
#pragma once
#include <string>

// The one place that says the version: the build, the Python package and the CMake package read it
// here.
#define TESSERA_VERSION_MAJOR 0
#define TESSERA_VERSION_MINOR 2
#define TESSERA_VERSION_PATCH 0

namespace tessera {

/// What this library was built from and with. Of the build, not of the host that it runs on.
struct BuildInfo {
  std::string version;     ///< "0.2.0"
  std::string commit;      ///< 12 digits of Git's; "unknown" where the sources were no checkout
  std::string libtorch;    ///< "2.11.0"
  std::string cuda;        ///< of the toolkit, "13.0.88"; "none" in builds for CPUs
  std::string transports;  ///< names of --backend, "nccl local mpi tcp"
};

/// Never fails.
BuildInfo build_info();

}  // namespace tessera
