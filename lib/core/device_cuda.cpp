// SPDX-License-Identifier: MIT
// Device functions of builds with CUDA.
#include <cuda_runtime_api.h>

#include "lib/core/device_driver.h"
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

std::string pci_address(at::Device device) {
  if (device.is_cpu()) return "";
  char text[32] = {};
  if (cudaDeviceGetPCIBusId(text, sizeof(text), device.index()) == cudaSuccess) return text;
  cudaGetLastError();  // clears the error: "unknown" is an answer
  return "";
}

std::string pin_pages(void* data, size_t bytes) {
  const cudaError_t result = cudaHostRegister(data, bytes, cudaHostRegisterPortable);
  if (result == cudaSuccess) return "";
  cudaGetLastError();  // clears the error, which is reported here
  return cudaGetErrorString(result);
}

void unpin_pages(void* data) { cudaHostUnregister(data); }

}  // namespace tessera
