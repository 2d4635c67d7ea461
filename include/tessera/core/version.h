// SPDX-License-Identifier: MIT
#pragma once
#include <string>

// Single source of the version for the build, the Python package and the CMake package.
#define TESSERA_VERSION_MAJOR 0
#define TESSERA_VERSION_MINOR 2
#define TESSERA_VERSION_PATCH 0

namespace tessera {

/// Sources and dependencies of this build, not of the host that it runs on.
struct BuildInfo {
  std::string version;     ///< "0.2.0"
  std::string commit;      ///< 12 digits of the Git commit; "unknown" without a checkout
  std::string libtorch;    ///< "2.11.0"
  std::string cuda;        ///< toolkit version, "13.0.88"; "none" in builds for CPUs
  std::string transports;  ///< names of --backend, "nccl local mpi tcp"
};

/// Information about this build; never fails.
BuildInfo build_info();

}  // namespace tessera
