// SPDX-License-Identifier: MIT
// Device functions of builds without CUDA.
#include "lib/core/pci_address.h"
#include "lib/core/pinning.h"
#include "tessera/core/device.h"

namespace tessera {

std::string device_name(at::Device) { return "CPU"; }

std::string pci_address(at::Device) { return ""; }

std::string pin_pages(void*, size_t) { return "this build has no CUDA"; }
void unpin_pages(void*) {}

}  // namespace tessera
