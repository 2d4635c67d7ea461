// SPDX-License-Identifier: MIT
#pragma once
// What the parts of decoder_block_fused share.
#include <ATen/core/Tensor.h>

#include "lib/models/block_norm.h"
#include "lib/models/decoder_block.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {

struct FusedSettings {
  DecoderBlockOptions options;
  at::Tensor attention_mask;
  PackedRows packed;
};

// What forward leaves for backward. The norms' outputs and active, the activation function's, are
// formed anew there unless they are kept.
struct FusedSaved {
  at::Tensor hidden, qkv, attended, inner, active;
  Norm norm1, norm2;
  ops::AttentionOutput attention;
  ops::HeadNormInput heads;  // empty without norms of heads
  // What adapters' A gave; undefined without adapters.
  at::Tensor qkv_lowered = {}, dense_lowered = {}, up_lowered = {}, down_lowered = {};

  void forget_what_is_formed_anew() {
    for (at::Tensor* formed : {&active, &norm1.output, &norm2.output}) formed->reset();
  }
};

// Queries and keys in place, forwards or their gradients back.
void turn(const at::Tensor& qkv, const DecoderBlockOptions& options, bool back);

}  // namespace tessera::detail
