// SPDX-License-Identifier: MIT
// Attention of one new token per row to the key/value cache.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "lib/ops/reference.h"

namespace tessera::ops::reference {

at::Tensor attention_to_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const CachedRows& rows, const SelfAttention& attention) {
  const at::NoGradGuard no_grad;
  const auto& [keys, values, lengths] = rows;
  const at::Tensor numbers = at::arange(q.size(0), lengths.options());
  keys.index_put_({numbers, lengths}, k.squeeze(1));
  values.index_put_({numbers, lengths}, v.squeeze(1));
  const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t key_heads = k.size(2), groups = q.size(2) / key_heads;
  // [batch, key heads, groups, capacity]
  const at::Tensor query = q.reshape({q.size(0), key_heads, groups, q.size(3)}).to(wide);
  at::Tensor scores = at::matmul(query, keys.permute({0, 2, 3, 1}).to(wide)).mul_(attention.scale);
  const at::Tensor distance = at::arange(keys.size(1), lengths.options()) - lengths.unsqueeze(1);
  const at::Tensor by_key = distance.view({q.size(0), 1, 1, -1});
  const at::Tensor& slopes = attention.slopes;
  if (slopes.defined()) scores.add_(slopes.to(wide).view({1, key_heads, groups, 1}) * by_key);
  at::Tensor hidden = by_key.gt(0);
  if (attention.window > 0) hidden = hidden.logical_or(by_key.le(-attention.window));
  scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  const at::Tensor context = at::matmul(scores.softmax(3), values.transpose(1, 2).to(wide));
  return context.to(q.scalar_type()).view({q.size(0), 1, -1});
}

void keep_in_cache(const at::Tensor& k, const at::Tensor& v, const at::Tensor& keys,
                   const at::Tensor& values, const PackedRows& packed) {
  const at::NoGradGuard no_grad;
  int64_t first = 0;
  for (size_t i = 0; i < packed.lengths.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    if (row == keys.size(0)) return;
    const int64_t length = packed.lengths[i];
    keys[row].narrow(0, 0, length).copy_(k[0].narrow(0, first, length));
    values[row].narrow(0, 0, length).copy_(v[0].narrow(0, first, length));
    first += length;
  }
}

}  // namespace tessera::ops::reference
