// SPDX-License-Identifier: MIT
#pragma once
// Random numbers determined by a seed alone, on any device.
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/ops/kernels.h"

namespace tessera::ops {

uint64_t mixed_seed(uint64_t seed, int64_t number);

// While it lives, a CUDA device's default generator starts at `seed`: for kernels without a
// generator argument. Each device has one rank, so no one else uses the generator meanwhile.
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

// An element is dropped if its 32 random bits are below this.
inline uint32_t drop_threshold(const Dropout& dropout) {
  return static_cast<uint32_t>(dropout.probability * 4294967296.0);
}

// Dropout's factors: 0, or 1 / (1 - probability).
at::Tensor dropout_factors(at::IntArrayRef shape, at::ScalarType dtype, const Dropout& dropout,
                           at::Device device);

// Factors for attention probabilities, [batch, heads, length, length].
at::Tensor attention_factors(at::IntArrayRef shape, at::ScalarType dtype,
                             const AttentionDropout& dropout, at::Device device);

}  // namespace tessera::ops
