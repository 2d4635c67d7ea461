#pragma once
// Random numbers that depend on a seed and nothing else, on any device.
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops {

uint64_t mixed_seed(uint64_t seed, int64_t number);

// While it lives, the default generator of a CUDA device stands at the start of `seed`: for kernels
// that take no generator of their own. Each device has one rank, so nobody else uses it meanwhile.
class SeededDevice {
 public:
  SeededDevice(at::Device device, uint64_t seed);
  ~SeededDevice();
  SeededDevice(const SeededDevice&) = delete;
  SeededDevice& operator=(const SeededDevice&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

// 0 with this probability, else 1 / (1 - probability): drawn on the CPU, or on the meta device
// nothing.
at::Tensor dropout_factors(at::IntArrayRef shape, at::ScalarType dtype, double probability,
                           uint64_t seed, at::Device device = at::kCPU);

}  // namespace tessera::ops
