// SPDX-License-Identifier: MIT
#pragma once
#include <c10/core/Device.h>

#include <string>

namespace tessera {

// PCI address of a GPU, "0000:3b:00.0", independent of the visible devices. Empty for the CPU and
// when the driver does not tell.
std::string pci_address(at::Device device);

}  // namespace tessera
