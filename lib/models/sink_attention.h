// SPDX-License-Identifier: MIT
#pragma once
// Attention with sinks to whole rows.
#include <ATen/core/Tensor.h>

#include <memory>

#include "tessera/core/micro_batch.h"
#include "tessera/ops/kernels.h"

namespace tessera {
class KeptTensors;
}

namespace tessera::detail {

// qkv [batch, sequence, (heads + 2 key_heads) d], rotated already -> [batch, sequence, heads * d],
// for autograd, as ops::piece_attention() of whole rows. sinks [heads]; kept: as there.
at::Tensor sink_attention(const at::Tensor& qkv, const ops::SelfAttention& attention,
                          const at::Tensor& sinks, const PackedRows& packed,
                          const std::shared_ptr<KeptTensors>& kept);

}  // namespace tessera::detail
