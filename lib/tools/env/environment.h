// SPDX-License-Identifier: MIT
#pragma once
// What of a host matters for training on it.
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
  int64_t total_bytes = 0, used_bytes = 0;  // used by anybody
  std::optional<int64_t> sm_mhz, most_mhz;
  int nvlinks = 0;
  std::vector<std::string> paths;  // to every GPU, see GpuMonitor::path_between()
};

// Read from the system; 0 and nothing stand for what it does not say.
struct HostFacts {
  std::string cpu, kernel;
  int cores = 0, numa_nodes = 0;  // cores that this process may use
  int launcher_cores = 0;         // and the process that started it, which may have bound it closer
  int64_t memory_bytes = 0, available_bytes = 0, shm_bytes = 0;
  std::optional<int64_t> locked_limit_bytes, open_files_limit;  // nothing: unlimited
  std::string driver;
  std::vector<GpuFacts> gpus;  // as the driver sees them
  int usable_gpus = 0;         // as this build sees them
  LaunchInfo launch;
  std::vector<TransportInfo> transports;
  std::map<std::string, std::string> variables;  // that change what programs do
};

HostFacts read_host();

// One sentence each, with what to do.
std::vector<std::string> warnings_of(const HostFacts& host);

}  // namespace tessera::programs
