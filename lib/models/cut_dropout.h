// SPDX-License-Identifier: MIT
#pragma once
// Dropout of cut rows (tessera/model/cut_rows.h) by a token's place in the whole rows, so that all
// ranks together drop what one rank drops.
#include <ATen/core/Tensor.h>

#include "tessera/model/cut_rows.h"
#include "tessera/ops/kernels.h"

namespace tessera {

// ops::dropout() of x [..., width], this rank's tokens in order; dropout.first / width: the first
// of them among the tokens of the rank's pieces. cut null: of whole rows.
at::Tensor dropout_of_cut(const at::Tensor& x, const ops::Dropout& dropout, const CutRows* cut);

// Factors 0 or 1 / (1 - probability) of that dropout, for tensors of `shape`.
at::Tensor dropout_factors_of_cut(at::IntArrayRef shape, at::ScalarType dtype,
                                  const ops::Dropout& dropout, at::Device device,
                                  const CutRows* cut);

}  // namespace tessera
