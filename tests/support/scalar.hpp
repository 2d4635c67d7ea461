// SPDX-License-Identifier: MIT
#pragma once
#include <ATen/ATen.h>

namespace tessera::test {

// A number as optimizers take it: 0-dim, fp32.
inline at::Tensor scalar(double value) { return at::full({}, value, at::kFloat); }

}  // namespace tessera::test
