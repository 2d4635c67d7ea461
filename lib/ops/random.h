// SPDX-License-Identifier: MIT
#pragma once
// Random numbers that depend on a seed and nothing else, on any device.
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/ops/kernels.h"

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

// Numbers below it, of 32 random bits, drop their element.
inline uint32_t drop_threshold(const Dropout& dropout) {
  return static_cast<uint32_t>(dropout.probability * 4294967296.0);
}

// What dropout multiplies elements by: 0, or 1 / (1 - probability).
at::Tensor dropout_factors(at::IntArrayRef shape, at::ScalarType dtype, const Dropout& dropout,
                           at::Device device);

// The same for the probabilities of attention, [batch, heads, length, length].
at::Tensor attention_factors(at::IntArrayRef shape, at::ScalarType dtype,
                             const AttentionDropout& dropout, at::Device device);

}  // namespace tessera::ops
