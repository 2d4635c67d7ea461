// SPDX-License-Identifier: MIT
#pragma once
// Attention that a caller gives to the fused block, as a function that autograd differentiates.
#include <ATen/core/Tensor.h>

#include "lib/models/decoder_block.h"

namespace tessera::detail {

// Its graph, from forward to backward; undefined: the block's own attention ran.
struct GivenAttention {
  at::Tensor qkv, output;
  at::Tensor sinks = {};  // a copy of the block's; undefined: none
  bool defined() const { return output.defined(); }
};

// The output, without autograd. kept, unless null, receives the graph.
at::Tensor attend_given(const DecoderAttention& attention, const at::Tensor& qkv,
                        const at::Tensor& sinks, GivenAttention* kept);
// Returns the gradient of qkv, adds that of sinks to sinks_gradient unless undefined, and frees the
// graph.
at::Tensor attend_given_backward(GivenAttention kept, const at::Tensor& gradient,
                                 const at::Tensor& sinks_gradient);

}  // namespace tessera::detail
