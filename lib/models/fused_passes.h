// SPDX-License-Identifier: MIT
#pragma once
// Forward and backward of decoder_block_fused, without autograd.
#include <ATen/core/Tensor.h>

#include "lib/models/fused_block.h"

namespace tessera::detail {

// hidden: contiguous. saved: null without gradients.
at::Tensor run_forward(const at::Tensor& hidden, at::IntArrayRef tokens,
                       const DecoderBlockWeights& w, const FusedSettings& settings,
                       FusedSaved* saved);

// Adds all weight gradients to the tensors in g, whose undefined members are skipped, or defers
// them.
at::Tensor run_backward(const at::Tensor& gradient, const DecoderBlockWeights& w,
                        const DecoderBlockWeights& g, const FusedSettings& settings,
                        FusedSaved& saved);

}  // namespace tessera::detail
