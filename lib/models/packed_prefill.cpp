// SPDX-License-Identifier: MIT
#include "lib/models/packed_prefill.h"

#include <ATen/ATen.h>

#include "lib/core/meta.h"
#include "lib/ops/packed.h"
#include "tessera/ops/attention.h"

namespace tessera {
namespace {

constexpr int64_t kWidthMultiple = 64;  // of padded rows, so that attention meets few shapes

// True if the GPU is as fast on rows end to end as on equal rows.
bool attends_end_to_end(const at::Tensor& qkv, const ops::SelfAttention& attention, int64_t d,
                        const PackedRows& packed) {
  const at::ScalarType type = qkv.scalar_type();
  if (attention.slopes.defined()) {
    return ops::attends_by_row(type, attention, d, qkv.size(1), packed);
  }
  return (type == at::kHalf || type == at::kBFloat16) && d % 8 == 0 && d <= 256;
}

at::Tensor attend(const at::Tensor& qkv, const ops::SelfAttention& attention,
                  const PackedRows& packed) {
  if (attention.slopes.defined()) {
    return ops::attention_forward(qkv, attention, {}, packed).output;
  }
  const auto [q, k, v] = ops::split_heads(qkv, attention);
  return ops::causal_attention(q, k, v, {}, {.scale = attention.scale, .window = attention.window},
                               packed);
}

}  // namespace

at::Tensor attend_packed_prefill(const at::Tensor& qkv, const ops::SelfAttention& attention,
                                 const PackedRows& packed, int64_t rows) {
  const int64_t d = qkv.size(2) / (attention.heads + 2 * attention.key_heads);
  return !runs_on_gpu(qkv) || attends_end_to_end(qkv, attention, d, packed)
             ? attend(qkv, attention, packed)
             : detail::attend_padded_prefill(qkv, attention, packed, rows);
}

// Scatters each token to its padded row and position; tokens behind the rows share one slot.
at::Tensor detail::attend_padded_prefill(const at::Tensor& qkv, const ops::SelfAttention& attention,
                                         const PackedRows& packed, int64_t rows) {
  const int64_t width = (packed.longest() + kWidthMultiple - 1) / kWidthMultiple * kWidthMultiple;
  const at::Tensor token = at::arange(qkv.size(1), packed.offsets.options());
  const at::Tensor ends = packed.offsets.narrow(0, 1, packed.offsets.numel() - 1);
  const at::Tensor row = at::searchsorted(ends, token, /*out_int32=*/false, /*right=*/true);
  const at::Tensor places = (row * width + packed.positions.flatten()).clamp_max_(rows * width);
  const at::Tensor all = at::zeros({rows * width + 1, qkv.size(2)}, qkv.options());
  all.index_copy_(0, places, qkv[0]);
  const at::Tensor context =
      attend(all.narrow(0, 0, rows * width).view({rows, width, -1}), attention, {});
  return context.flatten(0, 1).index_select(0, places.clamp_max(rows * width - 1)).unsqueeze(0);
}

}  // namespace tessera
