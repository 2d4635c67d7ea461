// SPDX-License-Identifier: MIT
#pragma once
// A fingerprint of a model's parameters.
#include <ATen/core/Tensor.h>

#include <string>

#include "lib/core/hash.h"

namespace tessera::programs {

// XXH3 of values as fp32 bytes, in the order of the calls. Values of a device pass through a
// page-locked buffer of 32 MiB.
class ParameterHash {
 public:
  void update(const at::Tensor& value);
  std::string hex() const { return hash_.digest128().hex(); }

 private:
  Xxh3Stream hash_;
  at::Tensor buffer_;  // fp32, 1-D
};

}  // namespace tessera::programs
