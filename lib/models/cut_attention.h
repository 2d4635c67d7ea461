// SPDX-License-Identifier: MIT
#pragma once
// Decoder layers on rows that the ranks of a context axis share.
#include <ATen/core/Tensor.h>

#include <memory>

#include "tessera/model/cut_rows.h"
#include "tessera/ops/kernels.h"

namespace tessera {

class KeptTensors;

// ops::split_heads(), whose backward joins the three gradients in one pass.
ops::QueriesKeysValues split_at_once(const at::Tensor& qkv, const ops::SelfAttention& attention);

// The way of ContextAttention::kAuto: kHeads where the heads divide among the ranks, unless kKeys
// sends less. forms_scores: no kernel of kKeys takes the attention, which is a reason for kHeads.
ContextAttention cut_attention_of(const ops::SelfAttention& attention, int64_t ranks,
                                  bool forms_scores);

// Attention of own tokens [batch, own, heads, d], rotated already, to the whole rows -> [batch,
// own, heads * d]. uniform: queries without visible keys attend as in padded_alibi_attention(),
// else they give 0. Probabilities are dropped as one rank drops them, on GPUs only with ALiBi.
// kept: see ops::PieceAttention; kHeads keeps no attention of packed rows.
// sinks: see ops::PieceAttention.
// Throws Error(kInvalidArgument) for kHeads unless the heads divide among the ranks, and for kKeys
// with such dropout.
at::Tensor attend_to_cut_rows(const ops::QueriesKeysValues& given,
                              const ops::SelfAttention& attention, const CutRows& cut,
                              bool uniform = false,
                              const std::shared_ptr<KeptTensors>& kept = nullptr,
                              const at::Tensor& sinks = {});

}  // namespace tessera
