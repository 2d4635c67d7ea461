// SPDX-License-Identifier: MIT
// Norms of query and key heads: checks around the kernels.
#include "lib/ops/cuda/entries.h"
#include "lib/ops/cuda/support.h"

namespace tessera::ops::cuda {
namespace {

bool norms_fit(const at::Tensor& qkv, const HeadNorms& norms) {
  const int64_t d = norms.query.numel();
  return fits(qkv.scalar_type(), {qkv, norms.query, norms.key}) && d % 8 == 0 &&
         d <= kMaxNormedHead && qkv.numel() > 0;
}

// Arguments without the pointers of saved values.
HeadNorm arguments_of(const at::Tensor& qkv, const SelfAttention& attention,
                      const HeadNorms& norms) {
  return {.qkv = qkv.data_ptr(),
          .token_stride = qkv.size(-1),
          .tokens = row_count(qkv),
          .heads = int(attention.heads + attention.key_heads),
          .query_heads = int(attention.heads),
          .d = int(norms.query.numel()),
          .epsilon = float(norms.epsilon),
          .query_weight = norms.query.const_data_ptr(),
          .key_weight = norms.key.const_data_ptr()};
}

}  // namespace

HeadNormInput head_norm_(const at::Tensor& qkv, const SelfAttention& attention,
                         const HeadNorms& norms) {
  if (!norms_fit(qkv, norms)) return reference::head_norm_(qkv, attention, norms);
  HeadNorm a = arguments_of(qkv, attention, norms);
  const int64_t batch = qkv.size(0), sequence = qkv.size(1);
  const HeadNormInput input{empty({batch, sequence, a.heads, a.d}, qkv, qkv.scalar_type()),
                            empty({batch, sequence, a.heads, 1}, qkv, at::kFloat)};
  a.x = input.x.data_ptr(), a.rstd = static_cast<float*>(input.rstd.data_ptr());
  head_norm(type_of(qkv), a, stream());
  check_launch("head_norm");
  return input;
}

void head_norm_backward_(const at::Tensor& gradient, const SelfAttention& attention,
                         const HeadNorms& norms, const HeadNormInput& input,
                         const at::Tensor& query, const at::Tensor& key, ColumnSums& sums) {
  if (!norms_fit(gradient, norms) || !fits(gradient.scalar_type(), {input.x})) {
    return reference::head_norm_backward_(gradient, attention, norms, input, query, key, sums);
  }
  HeadNorm a = arguments_of(gradient, attention, norms);
  const at::Tensor partial = empty({kHeadNormParts, 2 * int64_t(a.d)}, gradient, at::kFloat);
  a.x = input.x.data_ptr(), a.rstd = static_cast<float*>(input.rstd.data_ptr());
  a.partial = static_cast<float*>(partial.data_ptr());
  head_norm_backward(type_of(gradient), a, stream());
  check_launch("head_norm_backward");
  if (query.defined()) sums.items.push_back({partial.narrow(1, 0, a.d), query});
  if (key.defined()) sums.items.push_back({partial.narrow(1, a.d, a.d), key});
}

}  // namespace tessera::ops::cuda
