// SPDX-License-Identifier: MIT
#pragma once
// Linear layers in 8 bits after docs/concepts/fp8.md: numbers rounded here, products in fp64.
#include <ATen/core/Tensor.h>

#include "tessera/ops/fp8.h"

namespace tessera::testing {

// x [..., in] weight^T, weight [out, in], with autograd.
at::Tensor plain_fp8_linear(const at::Tensor& x, const at::Tensor& weight, Fp8 scaling);

}  // namespace tessera::testing
