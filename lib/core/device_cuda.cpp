// Builds with CUDA.
#include <cuda_runtime_api.h>

#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera {

std::string device_name(at::Device device) {
  if (device.is_cpu()) return "CPU";
  cudaDeviceProp properties{};
  const cudaError_t result = cudaGetDeviceProperties(&properties, device.index());
  check(result == cudaSuccess, ErrorCode::kUnavailable, "GPU ", static_cast<int>(device.index()),
        ": ", cudaGetErrorString(result));
  return properties.name;
}

}  // namespace tessera
