// SPDX-License-Identifier: MIT
#pragma once
// Forward pass of a decoder layer: which version of the block runs, and its attention.
#include <ATen/core/Tensor.h>

#include "lib/models/decoder_block.h"
#include "tessera/core/micro_batch.h"
#include "tessera/model/block_context.h"

namespace tessera {

// Rotary tables of a micro-batch need so many positions.
int64_t position_count(const MicroBatch& micro_batch, const BlockContext& context);
// DecoderBlockOptions::positions of a micro-batch.
at::Tensor positions_of(const MicroBatch& micro_batch, const BlockContext& context);

// hidden [batch, sequence, h] -> same shape. The fused block where it has kernels, the composed one
// elsewhere; with a decode state its part of the key/value cache belongs to `block`, an address.
at::Tensor layer_forward(const void* block, const at::Tensor& hidden,
                         const DecoderBlockWeights& weights, const DecoderBlockOptions& options,
                         const MicroBatch& micro_batch, const BlockContext& context);

// Attention with a key/value cache: prefill stores keys and values; decoding attends from one new
// token to all of them. Queries and keys [batch, sequence, heads, d] are rotated already.
at::Tensor attend_with_cache(const void* block, const ops::QueriesKeysValues& given,
                             const ops::SelfAttention& attention, const MicroBatch& micro_batch);

}  // namespace tessera
