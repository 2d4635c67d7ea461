// SPDX-License-Identifier: MIT
#pragma once
// Properties of a host that affect training.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/bootstrap.h"

namespace tessera::programs {

struct GpuFacts {
  std::string name;
  int64_t total_bytes = 0, used_bytes = 0;  // used by all processes
  std::optional<int64_t> sm_mhz, most_mhz;
  int nvlinks = 0;
  std::vector<std::string> paths;  // to every GPU, see GpuMonitor::path_between()
};

// Read from the system; 0 or empty if unknown.
struct HostFacts {
  std::string cpu, kernel;
  int cores = 0, numa_nodes = 0;  // cores: allowed for this process
  // Cores of the launching process, which may have bound this one more closely.
  int launcher_cores = 0;
  int64_t memory_bytes = 0, available_bytes = 0, shm_bytes = 0;
  std::optional<int64_t> locked_limit_bytes, open_files_limit;  // empty: unlimited
  std::string driver;
  std::vector<GpuFacts> gpus;  // seen by the driver
  int usable_gpus = 0;         // seen by this build
  LaunchInfo launch;
  std::vector<TransportInfo> transports;
  std::map<std::string, std::string> variables;  // variables that affect the programs
};

HostFacts read_host();

// One sentence each, with advice.
std::vector<std::string> warnings_of(const HostFacts& host);

}  // namespace tessera::programs
