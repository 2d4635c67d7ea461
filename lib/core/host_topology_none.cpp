// SPDX-License-Identifier: MIT
// Topology of builds without hwloc: all allowed cores count as near, and memory lies where it is
// first touched.
#include "lib/core/host_topology.h"

namespace tessera {

std::vector<int> cores_near_pci(const std::string&, const std::vector<int>& cores,
                                const std::string&) {
  return cores;
}

void place_memory(void*, size_t, const std::vector<int>&) {}

}  // namespace tessera
