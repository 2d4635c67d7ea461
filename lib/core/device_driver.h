// SPDX-License-Identifier: MIT
#pragma once
// Questions to a GPU's driver: addresses and page-locked memory.
#include <c10/core/Device.h>

#include <cstddef>
#include <string>

namespace tessera {

// PCI address of a GPU, "0000:3b:00.0", independent of the visible devices. Empty for the CPU and
// when the driver does not tell.
std::string pci_address(at::Device device);

// Page-locks memory for all GPUs; returns the reason for a failure, or "".
std::string pin_pages(void* data, size_t bytes);
void unpin_pages(void* data);

}  // namespace tessera
