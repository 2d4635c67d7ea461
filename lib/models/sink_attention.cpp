// SPDX-License-Identifier: MIT
#include "lib/models/sink_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "lib/ops/piece_attention.h"

namespace tessera::detail {

at::Tensor sink_attention(const at::Tensor& qkv, const ops::SelfAttention& attention,
                          const at::Tensor& sinks, const PackedRows& packed,
                          const std::shared_ptr<KeptTensors>& kept) {
  const int64_t heads = attention.heads, key_heads = attention.key_heads, n = qkv.size(1);
  // One split, whose backward joins the gradients in one pass.
  const auto parts =
      qkv.unflatten(2, {heads + 2 * key_heads, -1}).split_with_sizes({heads, 2 * key_heads}, 2);
  ops::PieceAttention options{.scale = attention.scale,
                              .window = attention.window < n ? attention.window : 0,
                              .packed = packed,
                              .sinks = sinks,
                              .kept = kept,
                              .is_again = at::GradMode::is_enabled()};
  // Sequences that lie end to end, as the last is shorter, are one.
  if (packed.defined()) options.packed.sequence = n;
  return ops::piece_attention(parts[0], parts[1], {{0, n}}, options);
}

}  // namespace tessera::detail
