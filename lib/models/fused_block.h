// SPDX-License-Identifier: MIT
#pragma once
// Shared by the parts of decoder_block_fused.
#include <ATen/core/Tensor.h>

#include "lib/models/block_norm.h"
#include "lib/models/decoder_block.h"
#include "lib/models/expert_feed_forward.h"
#include "lib/models/given_attention.h"
#include "tessera/ops/kernels.h"

namespace tessera::detail {

struct FusedSettings {
  DecoderBlockOptions options;
  at::Tensor attention_mask;
  PackedRows packed;
  DecoderAttention attention = {};  // in place of the kernels' attention; null: theirs
};

// Tensors saved for backward. The norms' outputs and `active`, the activation function's output,
// are recomputed unless saved.
struct FusedSaved {
  at::Tensor hidden, qkv, attended, inner, active;
  Norm norm1, norm2;
  ops::AttentionOutput attention;
  ops::HeadNormInput heads;  // undefined without norms of queries and keys
  // Results of the adapters' A; undefined without adapters.
  at::Tensor qkv_lowered = {}, dense_lowered = {}, up_lowered = {}, down_lowered = {};
  GivenAttention given = {};          // of FusedSettings::attention
  ops::HeadNormInput key_heads = {};  // see query_key_norm_()
  ExpertsSaved experts = {};
  // Of the shared expert's gate: fp32 (fp64 for fp64) [tokens, 1], and its adapters' A.
  at::Tensor shared_gate = {}, gate_lowered = {};
  at::Tensor of_router_sums = {};  // in backward: their gradient; undefined: 0

  void forget_what_is_formed_anew() {
    for (at::Tensor* formed : {&active, &norm1.output, &norm2.output}) formed->reset();
  }
};

// Applies the rotary embedding to queries and keys in place, or its inverse to their gradients.
void rotate(const at::Tensor& qkv, const DecoderBlockOptions& options, bool back);

// Spare rows behind packed tokens that give attention whole sequences without a copy.
int64_t spare_rows(const at::Tensor& hidden, const DecoderBlockWeights& w,
                   const FusedSettings& settings);

}  // namespace tessera::detail
