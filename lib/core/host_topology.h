// SPDX-License-Identifier: MIT
#pragma once
// What the machine's hardware topology says about cores and memory; lib/core only.
#include <cstddef>
#include <string>
#include <vector>

namespace tessera {

// Those of the cores that share a NUMA node with the PCI device, neighbours side by side; all of
// the cores when the device or its place is unknown. xml: a topology in hwloc's format to read
// instead of this machine's.
std::vector<int> cores_near_pci(const std::string& pci_address, const std::vector<int>& cores,
                                const std::string& xml = "");

// New pages of the range then come from the NUMA nodes of these cores while those have some.
void place_memory(void* data, size_t bytes, const std::vector<int>& cores);

}  // namespace tessera
