// SPDX-License-Identifier: MIT
#include "lib/models/fused_block.h"

#include <ATen/ATen.h>

#include "lib/models/block_products.h"
#include "lib/ops/packed.h"

namespace tessera::detail {

void rotate(const at::Tensor& qkv, const DecoderBlockOptions& options, bool back) {
  if (!options.rotary.cos.defined()) return;
  const ops::SelfAttention& a = options.attention;
  const at::Tensor heads = qkv.unflatten(2, {a.heads + 2 * a.key_heads, -1});
  const at::Tensor rotated = heads.narrow(2, 0, a.heads + a.key_heads);
  ops::rotary_(rotated.narrow(3, 0, 2 * options.rotary.cos.size(1)), options.rotary.cos,
               options.rotary.sin, options.positions, back);
}

int64_t spare_rows(const at::Tensor& hidden, const DecoderBlockWeights& w,
                   const FusedSettings& settings) {
  const PackedRows& packed = settings.packed;
  if (!packed.defined()) return 0;
  const int64_t spare = packed.first_keys.numel() - packed.positions.numel();
  if (spare == 0) return 0;
  const ops::SelfAttention& a = settings.options.attention;
  const int64_t d = weight_of(w.qkv).size(0) / (a.heads + 2 * a.key_heads);
  return ops::attends_to_sequences(hidden, a, d, settings.attention_mask, packed) ? spare : 0;
}

}  // namespace tessera::detail
