// SPDX-License-Identifier: MIT
#pragma once
// Matrices that are stored in 8 bits.
#include "lib/ops/fp8.h"

namespace tessera::ops {

// values (fp32, bf16 or fp16, of the codes' shape) receives codes * scale, rounded once. x: with
// one scale.
void fp8_decode(const Fp8Matrix& x, const at::Tensor& values);
// Whether a GPU's kernel makes fp8_turned() of it; LibTorch makes that of others.
bool fp8_turned_fits(const Fp8Matrix& x);

}  // namespace tessera::ops
