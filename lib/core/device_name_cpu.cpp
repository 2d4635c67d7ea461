// Builds without CUDA.
#include "tessera/core/device.h"

namespace tessera {

std::string device_name(at::Device) { return "CPU"; }

}  // namespace tessera
