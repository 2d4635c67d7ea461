// SPDX-License-Identifier: MIT
#include "lib/models/query_key_norm.h"

#include <ATen/ATen.h>

#include "lib/model/tensor_collectives.h"
#include "lib/ops/wide.h"
#include "tessera/ops/functional.h"

namespace tessera::detail {
namespace {

bool is_of_heads(const at::Tensor& qkv, const at::Tensor& weight, const ops::SelfAttention& a) {
  return weight.numel() * (a.heads + 2 * a.key_heads) == qkv.size(-1);
}

ops::HeadNorms head_norms(const DecoderBlockWeights& w, const DecoderBlockOptions& options) {
  return {w.query_norm, w.key_norm, options.epsilon};
}

// The rank's elements of a weight of all heads together, which every rank has whole.
at::Tensor own_of(const at::Tensor& weight, const TensorAxis& axis) {
  const int64_t count = weight.numel() / axis.size();
  return weight.narrow(0, axis.rank() * count, count);
}

// The rank's columns of weight's norm, as rows.
at::Tensor columns_of(const at::Tensor& qkv, int64_t first, const at::Tensor& own) {
  return qkv.view({-1, qkv.size(-1)}).narrow(1, first, own.numel());
}

at::Tensor widened(const at::Tensor& x) { return x.to(ops::wide(x)); }

// The mean over the columns of all ranks, [rows, 1].
at::Tensor mean_of_all(const at::Tensor& x, const TensorAxis& axis) {
  const at::Tensor sums = x.sum(-1, /*keepdim=*/true);
  return start_all_reduce(sums, axis).wait() / static_cast<double>(x.size(-1) * axis.size());
}

// The rank's own columns of a norm that ranks share.
ops::HeadNormInput normalise_shared(const at::Tensor& columns, const at::Tensor& own,
                                    const DecoderBlockOptions& options) {
  const at::Tensor x = columns.clone(at::MemoryFormat::Contiguous), wide = widened(x);
  const at::Tensor rstd = (mean_of_all(wide.square(), options.axis) + options.epsilon).rsqrt();
  columns.copy_(wide * rstd * own);
  return {x, rstd.squeeze(1)};
}

void shared_backward(const at::Tensor& columns, const at::Tensor& own, const at::Tensor& sink,
                     const ops::HeadNormInput& forward, const TensorAxis& axis) {
  const at::Tensor rstd = forward.rstd.unsqueeze(1), normed = widened(forward.x) * rstd;
  const at::Tensor dy = widened(columns), dnormed = dy * own;
  if (sink.defined()) sink.add_((dy * normed).sum(0));  // before dy, a view in fp64, changes
  columns.copy_((dnormed - normed * mean_of_all(dnormed * normed, axis)) * rstd);
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
  if (const TensorAxis& axis = options.axis; axis.size() > 1) {
    const at::Tensor query = own_of(w.query_norm, axis), key = own_of(w.key_norm, axis);
    ops::HeadNormInput queries = normalise_shared(columns_of(qkv, 0, query), query, options);
    return {queries, normalise_shared(columns_of(qkv, query.numel(), key), key, options)};
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
  if (const TensorAxis& axis = options.axis; axis.size() > 1) {
    const auto own = [&](const at::Tensor& x) { return x.defined() ? own_of(x, axis) : x; };
    const at::Tensor query = own(w.query_norm), key = own(w.key_norm);
    shared_backward(columns_of(gradient, 0, query), query, own(g.query_norm), input.first, axis);
    shared_backward(columns_of(gradient, query.numel(), key), key, own(g.key_norm), input.second,
                    axis);
    return;
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

at::Tensor query_or_key_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                             const TensorAxis& axis) {
  if (weight.numel() == x.size(-1)) return ops::rms_norm(x, weight, epsilon);
  if (axis.size() > 1) {
    const at::Tensor wide = widened(x.flatten(2)), squares = wide.square().sum(-1, true);
    // Every rank's columns depend on all ranks' squares, and the other way round.
    const at::Tensor all = copy_to_tensor_ranks(reduce_from_tensor_ranks(squares, axis), axis);
    const at::Tensor rstd = (all / static_cast<double>(weight.numel()) + epsilon).rsqrt();
    return (wide * rstd * own_of(weight, axis)).to(x.scalar_type()).view(x.sizes());
  }
  return ops::rms_norm(x.flatten(2), weight, epsilon).view(x.sizes());
}

}  // namespace tessera::detail
