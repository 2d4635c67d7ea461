// SPDX-License-Identifier: MIT
#include "lib/models/router_path.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "lib/model/context_collectives.h"
#include "lib/ops/router_sums.h"
#include "lib/ops/wide.h"
#include "tessera/core/error.h"
#include "tessera/core/real_tokens.h"
#include "tessera/model/cut_rows.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [Note: sums behind the hidden state]
// Sums are fp32 (fp64 for fp64), the hidden state may have 16 bits: their bits lie behind its
// elements. What is between blocks is copied and sent, never computed with.
at::Tensor joined_bits(const at::Tensor& hidden, const at::Tensor& sums) {
  return at::cat({hidden.reshape({-1}), sums.reshape({-1}).view(hidden.scalar_type())});
}

RoutedState parted_bits(const at::Tensor& joint, at::IntArrayRef hidden, at::IntArrayRef sums) {
  const int64_t elements = c10::multiply_integers(hidden);
  const at::Tensor behind = joint.narrow(0, elements, joint.numel() - elements).clone();
  return {joint.narrow(0, 0, elements).view(hidden), behind.view(ops::wide(joint)).view(sums)};
}

class Join : public torch::autograd::Function<Join> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& sums) {
    context->saved_data["hidden"] = hidden.sizes();
    context->saved_data["sums"] = sums.sizes();
    return joined_bits(hidden, sums);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const RoutedState parts =
        parted_bits(gradients[0].contiguous(), context->saved_data["hidden"].toIntVector(),
                    context->saved_data["sums"].toIntVector());
    return {parts.hidden, parts.sums};
  }
};

class Part : public torch::autograd::Function<Part> {
 public:
  static variable_list forward(AutogradContext*, const at::Tensor& joint,
                               const std::vector<int64_t>& hidden,
                               const std::vector<int64_t>& sums) {
    const RoutedState parts = parted_bits(joint, hidden, sums);
    return {parts.hidden, parts.sums};
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {joined_bits(gradients[0], gradients[1].contiguous()), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

RouterPath::RouterPath(const DecoderConfig& config, const TensorAxis& axis)
    : experts_(config.experts),
      hidden_(config.hidden),
      axis_(axis),
      balance_(config.router_aux_loss_coef),
      z_(config.router_z_loss_coef) {
  if (!config.watches_routers()) return;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    places_.push_back(layers_);
    if (config.has_experts(static_cast<size_t>(layer))) ++layers_;
  }
}

at::Tensor RouterPath::begin(const at::Tensor& hidden, const MicroBatch& micro_batch) const {
  if (!on(micro_batch)) return hidden;
  return Join::apply(hidden, at::zeros({layers_, ops::router_sum_count(experts_)},
                                       hidden.options().dtype(ops::wide(hidden))));
}

RoutedState RouterPath::open(const at::Tensor& input, const MicroBatch& micro_batch) const {
  if (!on(micro_batch)) return {input, {}};
  std::vector<int64_t> sizes = micro_batch.input_ids.sizes().vec();
  if (axis_.sequence_parallel()) sizes = {axis_.rows_per_rank(micro_batch.input_ids.numel())};
  sizes.push_back(hidden_);
  const variable_list parts =
      Part::apply(input, sizes, std::vector<int64_t>{layers_, ops::router_sum_count(experts_)});
  return {parts[0], parts[1]};
}

at::Tensor RouterPath::close(const at::Tensor& hidden, const at::Tensor& sums,
                             const at::Tensor& own, size_t layer) const {
  if (!sums.defined()) return hidden;
  if (!own.defined()) return Join::apply(hidden, sums);
  const int64_t place = places_[layer];
  return Join::apply(hidden, at::cat({sums.narrow(0, 0, place), own.unsqueeze(0),
                                      sums.narrow(0, place + 1, layers_ - place - 1)}));
}

at::Tensor RouterPath::with_losses(const at::Tensor& loss, const at::Tensor& sums,
                                   const MicroBatch& micro_batch,
                                   const BlockContext& context) const {
  const at::Tensor counts = sums.detach().narrow(1, experts_ + 1, experts_).flatten();
  const at::Tensor counted = counted_tokens(micro_batch, context);
  const at::Tensor tokens =
      counted.defined()
          ? counted.sum().to(counts.scalar_type())
          : at::full({}, static_cast<double>(micro_batch.input_ids.numel()), counts.options());
  const at::Tensor targets = micro_batch.labels.ne(kIgnoredLabel).sum().to(counts.scalar_type());
  // Of the whole micro-batch, which ranks of a context axis share. Probabilities stay the rank's
  // own: the losses of these ranks are added.
  at::Tensor whole = at::cat({counts, at::stack({tokens, targets})});
  if (context.cut_rows != nullptr) whole = sum_of_ranks(whole, *context.cut_rows->ranks);
  const at::Tensor by_expert = whole.narrow(0, 0, counts.numel()).view({layers_, experts_}).sum(0);
  const at::Tensor rows = whole.select(0, counts.numel()).clamp_min(1) * layers_;
  const at::Tensor weight = whole.select(0, counts.numel() + 1);
  const at::Tensor share = by_expert / rows;
  const at::Tensor probability = sums.narrow(1, 0, experts_).sum(0) / rows;
  const at::Tensor balance = (share * probability).sum() * experts_ * weight;
  const at::Tensor z = sums.select(1, experts_).sum() / rows * weight;
  at::Tensor result = loss;
  if (context.training) {
    if (balance_ > 0) result = result + (balance * balance_).to(loss.scalar_type());
    if (z_ > 0) result = result + (z * z_).to(loss.scalar_type());
  }
  const at::Tensor counters =
      at::cat({at::stack({balance.detach(), z.detach()}), counts}).to(loss.scalar_type());
  return at::cat({result, counters});
}

at::Tensor counted_tokens(const MicroBatch& micro_batch, const BlockContext& context) {
  if (const auto given = micro_batch.extra.find(kRealTokens); given != micro_batch.extra.end()) {
    check(given->second.sizes() == micro_batch.input_ids.sizes(), ErrorCode::kInvalidArgument,
          kRealTokens, " has shape ", given->second.sizes(), ", but the tokens have ",
          micro_batch.input_ids.sizes());
    return given->second.reshape({-1}).to(at::kFloat);
  }
  const CutRows* const cut = context.cut_rows.get();
  if (cut == nullptr) {
    const at::Tensor& mask = micro_batch.attention_mask;
    return mask.defined() ? mask.reshape({-1}).to(at::kFloat) : mask;
  }
  if (cut->attention_mask.defined()) {
    return cut->attention_mask.index_select(1, cut->columns).reshape({-1}).to(at::kFloat);
  }
  const int64_t rows = micro_batch.input_ids.size(0);
  if (cut->given == cut->sequence && rows * cut->given == cut->tokens) return {};
  const at::Tensor begins = at::arange(rows, cut->columns.options()).mul_(cut->given).unsqueeze(1);
  const at::Tensor real =
      cut->columns.lt(cut->given).logical_and((begins + cut->columns).lt(cut->tokens));
  return real.reshape({-1}).to(at::kFloat);
}

}  // namespace tessera
