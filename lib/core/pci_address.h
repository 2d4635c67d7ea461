// SPDX-License-Identifier: MIT
#pragma once
#include <c10/core/Device.h>

#include <string>

namespace tessera {

// Where a GPU is plugged in, "0000:3b:00.0": what all tools know it by, whichever GPUs a process
// sees. Empty for the CPU and where the driver does not say.
std::string pci_address(at::Device device);

}  // namespace tessera
