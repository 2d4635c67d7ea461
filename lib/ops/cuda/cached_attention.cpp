// SPDX-License-Identifier: MIT
// Attention of one new token per row to the cache: checks around the kernel.
#include "lib/ops/cuda/entries.h"
#include "lib/ops/cuda/support.h"

namespace tessera::ops::cuda {
namespace {

// True for [batch, 1, heads, d] with heads readable 16 bytes at a time.
bool has_wide_heads(const at::Tensor& x) {
  return x.stride(3) == 1 && x.stride(0) % 8 == 0 && x.stride(2) % 8 == 0 && is_aligned(x);
}

}  // namespace

at::Tensor attention_to_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const CachedRows& rows, const SelfAttention& attention) {
  const auto& [keys, values, lengths] = rows;
  const at::Tensor& slopes = attention.slopes;
  const int64_t d = q.size(3);
  const bool same_type = k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type();
  if (!fits(q.scalar_type(), {keys, values}) || !same_type || !has_wide_heads(q) ||
      !has_wide_heads(k) || !has_wide_heads(v) || k.strides() != v.strides() || d % 8 != 0 ||
      d > kMaxCachedHead || !lengths.is_contiguous() || q.numel() == 0 ||
      (slopes.defined() && (slopes.scalar_type() != at::kFloat || !slopes.is_contiguous()))) {
    return reference::attention_to_cache(q, k, v, rows, attention);
  }
  const at::Tensor output = at::empty({q.size(0), 1, q.size(2) * d}, q.options());
  attention_to_cache(type_of(q),
                     {.q = q.data_ptr(),
                      .k = k.data_ptr(),
                      .v = v.data_ptr(),
                      .q_row = q.stride(0),
                      .q_head = q.stride(2),
                      .key_row = k.stride(0),
                      .key_head = k.stride(2),
                      .keys = keys.data_ptr(),
                      .values = values.data_ptr(),
                      .lengths = lengths.const_data_ptr<int64_t>(),
                      .slopes = static_cast<const float*>(data_or_null(slopes)),
                      .output = output.data_ptr(),
                      .batch = int(q.size(0)),
                      .heads = int(q.size(2)),
                      .key_heads = int(k.size(2)),
                      .d = int(d),
                      .capacity = keys.size(1),
                      .scale = float(attention.scale),
                      .window = attention.window},
                     stream());
  check_launch("attention_to_cache");
  return output;
}

void keep_in_cache(const at::Tensor& k, const at::Tensor& v, const at::Tensor& keys,
                   const at::Tensor& values, const PackedRows& packed) {
  const int64_t wide = 16 / k.element_size();  // elements per 16 bytes
  const auto fits = [&](const at::Tensor& x) {
    return x.stride(3) == 1 && x.stride(1) % wide == 0 && x.stride(2) % wide == 0 && is_aligned(x);
  };
  const bool same_type = v.scalar_type() == k.scalar_type() &&
                         keys.scalar_type() == k.scalar_type() &&
                         values.scalar_type() == k.scalar_type();
  if (!same_type || !fits(k) || !fits(v) || k.strides() != v.strides() || k.size(3) % wide != 0 ||
      !keys.is_contiguous() || !values.is_contiguous() || !is_aligned(keys) ||
      !is_aligned(values)) {
    return reference::keep_in_cache(k, v, keys, values, packed);
  }
  keep_in_cache({.k = k.data_ptr(),
                 .v = v.data_ptr(),
                 .token = k.stride(1) / wide,
                 .head = k.stride(2) / wide,
                 .offsets = packed.offsets.const_data_ptr<int32_t>(),
                 .rows = int(packed.lengths.size()),
                 .keys = keys.data_ptr(),
                 .values = values.data_ptr(),
                 .batch = int(keys.size(0)),
                 .heads = int(k.size(2)),
                 .head_pieces = int(k.size(3) / wide),
                 .tokens = k.size(1),
                 .capacity = keys.size(1)},
                stream());
  check_launch("keep_in_cache");
}

}  // namespace tessera::ops::cuda
