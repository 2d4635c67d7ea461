// SPDX-License-Identifier: MIT
#include "lib/models/query_key_norm.h"

#include <ATen/ATen.h>

#include "tessera/ops/functional.h"

namespace tessera::detail {
namespace {

bool is_of_heads(const at::Tensor& qkv, const at::Tensor& weight, const ops::SelfAttention& a) {
  return weight.numel() * (a.heads + 2 * a.key_heads) == qkv.size(-1);
}

ops::HeadNorms head_norms(const DecoderBlockWeights& w, const DecoderBlockOptions& options) {
  return {w.query_norm, w.key_norm, options.epsilon};
}

// The columns of weight's norm, as rows.
at::Tensor columns_of(const at::Tensor& qkv, int64_t first, const at::Tensor& weight) {
  return qkv.view({-1, qkv.size(-1)}).narrow(1, first, weight.numel());
}

ops::HeadNormInput normalise(const at::Tensor& columns, const at::Tensor& weight, double epsilon) {
  const at::Tensor x = columns.clone(at::MemoryFormat::Contiguous);
  const ops::RmsNormOutput normed = ops::rms_norm_forward(x, weight, epsilon);
  columns.copy_(normed.output);
  return {x, normed.rstd};
}

}  // namespace

QueryKeyNormInput query_key_norm_(const at::Tensor& qkv, const DecoderBlockWeights& w,
                                  const DecoderBlockOptions& options) {
  if (is_of_heads(qkv, w.query_norm, options.attention)) {
    return {ops::head_norm_(qkv, options.attention, head_norms(w, options)), {}};
  }
  return {
      normalise(columns_of(qkv, 0, w.query_norm), w.query_norm, options.epsilon),
      normalise(columns_of(qkv, w.query_norm.numel(), w.key_norm), w.key_norm, options.epsilon)};
}

void query_key_norm_backward_(const at::Tensor& gradient, const DecoderBlockWeights& w,
                              const DecoderBlockWeights& g, const DecoderBlockOptions& options,
                              const QueryKeyNormInput& input, ops::ColumnSums& sums) {
  if (is_of_heads(gradient, w.query_norm, options.attention)) {
    return ops::head_norm_backward_(gradient, options.attention, head_norms(w, options),
                                    input.first, g.query_norm, g.key_norm, sums);
  }
  const auto back = [&](int64_t first, const at::Tensor& weight, const at::Tensor& sink,
                        const ops::HeadNormInput& forward) {
    const at::Tensor columns = columns_of(gradient, first, weight);
    columns.copy_(ops::norm_backward(columns.contiguous(),
                                     {.x = forward.x, .rstd = forward.rstd, .weight = weight}, {},
                                     {.weight = sink}, sums));
  };
  back(0, w.query_norm, g.query_norm, input.first);
  back(w.query_norm.numel(), w.key_norm, g.key_norm, input.second);
}

at::Tensor query_or_key_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  if (weight.numel() == x.size(-1)) return ops::rms_norm(x, weight, epsilon);
  return ops::rms_norm(x.flatten(2), weight, epsilon).view(x.sizes());
}

}  // namespace tessera::detail
