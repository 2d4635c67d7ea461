// SPDX-License-Identifier: MIT
#pragma once
// Decoder layers on rows that the ranks of a context axis share.
#include <ATen/core/Tensor.h>

#include <memory>

#include "tessera/model/block_context.h"
#include "tessera/model/cut_rows.h"
#include "tessera/ops/kernels.h"

namespace tessera {

class KeptTensors;

// ops::split_heads(), whose backward joins the three gradients in one pass.
ops::QueriesKeysValues split_at_once(const at::Tensor& qkv, const ops::SelfAttention& attention);

// Attention of own tokens [batch, own, heads, d], rotated already, to the whole rows -> [batch,
// own, heads * d]. uniform: queries without visible keys attend as in padded_alibi_attention(),
// else they give 0. Throws Error(kInvalidArgument) for kHeads unless the heads divide among the
// ranks, and for what has no version here.
// kept: see ops::PieceAttention; kHeads forms its own attention each time.
at::Tensor attend_to_cut_rows(const ops::QueriesKeysValues& given,
                              const ops::SelfAttention& attention, const CutRows& cut,
                              bool uniform = false,
                              const std::shared_ptr<KeptTensors>& kept = nullptr);

// Throws Error(kInvalidArgument) for dropout in training on cut rows.
void require_no_dropout(const BlockContext& context, double probability);

}  // namespace tessera
