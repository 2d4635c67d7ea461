// SPDX-License-Identifier: MIT
#pragma once
// Cores and memory in the machine's hardware topology; lib/core only.
#include <cstddef>
#include <string>
#include <vector>

namespace tessera {

// The cores on the PCI device's NUMA node, neighbours adjacent; all cores if the device or its node
// is unknown. xml: an hwloc topology to read instead of this machine's.
std::vector<int> cores_near_pci(const std::string& pci_address, const std::vector<int>& cores,
                                const std::string& xml = "");

// Makes new pages of the range come from the NUMA nodes of these cores while those have free
// memory.
void place_memory(void* data, size_t bytes, const std::vector<int>& cores);

}  // namespace tessera
