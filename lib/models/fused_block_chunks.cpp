// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lib/core/gradient_columns.h"
#include "lib/model/tensor_collectives.h"
#include "lib/models/block_products.h"
#include "lib/models/fused_block.h"

namespace tessera::detail {
namespace {

bool has_adapters(const ProductWeights& p) {
  return std::ranges::any_of(p.adapters, &LoraWeights::defined);
}

struct Chunks {
  int64_t rows, number;
  int64_t begin(int64_t chunk) const { return rows * chunk / number; }
  int64_t count(int64_t chunk) const { return begin(chunk + 1) - begin(chunk); }
};

// [Note: sums beside products]
// Rows of a batch meet in no layer, so a chunk of them goes through the block alone: while its
// product's parts are summed over the ranks, the other one is computed; the last sums run beside
// the next block. Two chunks do: a sum takes less time than half a layer of the other chunk.
class ChunkedForward {
 public:
  ChunkedForward(const at::Tensor& hidden, const DecoderBlockWeights& w,
                 const FusedSettings& settings, bool saves)
      : w_(w),
        options_(settings.options),
        qkv_weight_(weight_of(w.qkv)),
        qkv_bias_(bias_of(w.qkv)),
        dense_weight_(weight_of(w.dense)),
        up_weight_(weight_of(w.up)),
        up_bias_(bias_of(w.up)),
        down_weight_(weight_of(w.down)) {
    const int64_t batch = hidden.size(0), sequence = hidden.size(1);
    const auto room = [&](int64_t columns) {
      return at::empty({batch, sequence, columns}, hidden.options());
    };
    const auto numbers = hidden.options().dtype(
        hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    const auto norm = [&](const NormWeights& weights) {
      const at::Tensor rstd = at::empty({batch * sequence}, numbers);
      return Norm{at::empty_like(hidden),
                  weights.bias.defined() ? at::empty_like(rstd) : at::Tensor(), rstd};
    };
    s_.hidden = hidden;
    s_.norm1 = norm(w.input_norm);
    s_.qkv = room(qkv_weight_.size(0));
    s_.attention.output = room(dense_weight_.size(1));
    s_.attended = at::empty_like(hidden);
    s_.norm2 = norm(w.attention_norm);
    if (saves || options_.gated) s_.inner = room(up_weight_.size(0));
    s_.active = room(down_weight_.size(1));
    output_ = at::empty_like(hidden);
  }

  // Up to the sum of what attention adds, which is under way then.
  Pending attend(int64_t first, int64_t count) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
    const Norm norm = norm_of(s_.hidden, w_.input_norm, s_.norm1, first, count);
    const at::Tensor qkv = part(s_.qkv);
    ops::linear_forward(norm.output, qkv_weight_, qkv_bias_, {}, qkv);
    turn(qkv, options_, /*back=*/false);
    const ops::AttentionOutput attention =
        ops::attention_forward(qkv, options_.attention, {}, {}, part(s_.attention.output));
    s_.log_sum_exps.push_back(attention.log_sum_exp);
    return start_add(attention.output, dense_weight_, only_bias(w_.dense),
                     options_.residual_post_layernorm ? norm.output : part(s_.hidden),
                     part(s_.attended));
  }

  // From there on to the sum of the output, which is under way then.
  Pending feed_forward(int64_t first, int64_t count) const {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
    const Norm norm = norm_of(s_.attended, w_.attention_norm, s_.norm2, first, count);
    const at::Tensor active = part(s_.active);
    at::Tensor inner = s_.inner.defined() ? part(s_.inner) : at::Tensor();
    if (options_.gated) {
      ops::linear_forward(norm.output, up_weight_, up_bias_, {}, inner);
      ops::swiglu_forward(inner, active);
    } else {
      ops::linear_gelu_forward(norm.output, up_weight_, up_bias_,
                               inner.defined() ? &inner : nullptr, active);
    }
    return start_add(active, down_weight_, only_bias(w_.down),
                     options_.residual_post_layernorm ? norm.output : part(s_.attended),
                     part(output_));
  }

  const at::Tensor& output() const { return output_; }
  FusedSaved take() { return std::move(s_); }

 private:
  Norm norm_of(const at::Tensor& x, const NormWeights& weights, const Norm& whole, int64_t first,
               int64_t count) const {
    const int64_t sequence = x.size(1);
    const auto numbers = [&](const at::Tensor& all) {
      return all.defined() ? all.narrow(0, first * sequence, count * sequence) : all;
    };
    return norm_forward(x.narrow(0, first, count), weights, options_.epsilon, {},
                        {whole.output.narrow(0, first, count), numbers(whole.mean),
                         numbers(whole.rstd)});
  }

  // The sum over ranks of x W^T, with bias and residual, which one rank's part carries for all.
  Pending start_add(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    const at::Tensor& residual, const at::Tensor& result) const {
    const bool carries = options_.axis.rank() == 0;
    ops::linear_forward(x, weight, carries ? bias : at::Tensor(),
                        carries ? residual : at::Tensor(), result);
    return start_all_reduce(result, options_.axis);
  }

  const DecoderBlockWeights& w_;
  const DecoderBlockOptions& options_;
  const at::Tensor qkv_weight_, qkv_bias_, dense_weight_, up_weight_, up_bias_, down_weight_;
  FusedSaved s_;
  at::Tensor output_;
};

}  // namespace

int64_t forward_chunks(const at::Tensor& hidden, const DecoderBlockWeights& w,
                       const FusedSettings& settings) {
  const DecoderBlockOptions& options = settings.options;
  if (!is_worth_chunks(hidden, options.axis) || hidden.size(0) < 2) return 1;
  if (settings.packed.defined() || settings.attention_mask.defined()) return 1;
  const bool plain = !w.query_norm.defined() && !options.positions.defined() &&
                     !options.dropout[0].on() && !options.dropout[1].on() &&
                     !options.attention.dropout.on() && options.attention.window == 0 &&
                     !has_adapters(w.qkv) && !has_adapters(w.dense) && !has_adapters(w.up) &&
                     !has_adapters(w.down);
  return plain ? 2 : 1;
}

at::Tensor forward_in_chunks(const at::Tensor& hidden, const DecoderBlockWeights& w,
                             const FusedSettings& settings, int64_t chunks, FusedSaved* saved) {
  ChunkedForward forward(hidden, w, settings, saved != nullptr);
  const Chunks rows{hidden.size(0), chunks};
  GradientColumns* const between = settings.options.gradient_columns.get();
  UnfinishedRows::Waits waits;
  if (between != nullptr) waits = between->rows.take();
  std::vector<Pending> sums;
  for (int64_t i = 0; i < chunks; ++i) {
    if (!waits.empty()) waits[i]();
    sums.push_back(forward.attend(rows.begin(i), rows.count(i)));
  }
  for (int64_t i = 0; i < chunks; ++i) {
    sums[i].wait();
    sums[i] = forward.feed_forward(rows.begin(i), rows.count(i));
  }
  if (between != nullptr && between->rows.allowed()) {
    waits.clear();
    for (Pending& sum : sums) waits.emplace_back([sum]() mutable { sum.wait(); });
    between->rows.leave(std::move(waits));
  } else {
    for (Pending& sum : sums) sum.wait();
  }
  if (saved != nullptr) {
    *saved = forward.take();
    if (!settings.options.keep_activations) saved->forget_what_is_formed_anew();
  }
  return forward.output();
}

at::Tensor attention_backward_in_chunks(const at::Tensor& gradient, const FusedSettings& settings,
                                        const FusedSaved& saved) {
  const at::Tensor dqkv = at::empty_like(saved.qkv);
  const auto chunks = static_cast<int64_t>(saved.log_sum_exps.size());
  const Chunks rows{dqkv.size(0), chunks};
  for (int64_t i = 0; i < chunks; ++i) {
    const auto part = [&](const at::Tensor& x) {
      return x.narrow(0, rows.begin(i), rows.count(i));
    };
    ops::attention_backward(part(gradient), part(saved.qkv), settings.options.attention, {},
                            {part(saved.attention.output), saved.log_sum_exps[size_t(i)]}, {},
                            part(dqkv));
  }
  return dqkv;
}

}  // namespace tessera::detail
