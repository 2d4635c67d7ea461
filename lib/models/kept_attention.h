// SPDX-License-Identifier: MIT
#pragma once
// Attention of recomputed blocks, formed once.
#include <ATen/core/Tensor.h>

#include "lib/models/fused_block.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {

// ops::attention_forward(). With DecoderBlockOptions::kept_tensors forward keeps the result, and
// its repetition (is_again) takes it.
ops::AttentionOutput attend_once(const at::Tensor& qkv, const FusedSettings& settings,
                                 bool is_again);

}  // namespace tessera::detail
