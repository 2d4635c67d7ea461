// SPDX-License-Identifier: MIT
// The model's end: losses and scores of its last block.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "lib/program/program_block.h"
#include "lib/program/scores_loss.h"
#include "tessera/core/error.h"
#include "tessera/model/target_weights.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera::program {
namespace {

void check_number(const std::string& block, const at::Tensor& result) {
  check(result.numel() == 1 && result.is_floating_point(), ErrorCode::kInvalidArgument, "block ",
        block, ": the program's loss is ", result.sizes(), " of ", result.scalar_type(),
        "; expected one floating number");
}

at::Tensor as_sum(const at::Tensor& mean, int64_t targets) {
  const at::Tensor one = mean.to(at::kFloat).reshape({1});
  return targets == 0 ? at::zeros_like(one) : one * targets;
}

// Their loss and how many are right.
std::pair<at::Tensor, at::Tensor> classification_loss(const at::Tensor& scores,
                                                      const at::Tensor& labels) {
  const at::Tensor of_classes = scores.to(at::kFloat);
  const at::Tensor loss =
      at::nll_loss(of_classes.log_softmax(-1), labels, {}, at::Reduction::Sum, kIgnoredLabel);
  const at::Tensor correct = of_classes.detach().argmax(-1).eq(labels).sum();
  return {loss, correct.to(at::kFloat)};
}

}  // namespace

at::Tensor ProgramBlock::loss_of(size_t variant, const std::vector<at::Tensor>& hidden,
                                 const MicroBatch& micro_batch, const BlockContext& context) {
  if (parts_->loss == LossKind::kCausal) return causal_loss(variant, hidden, micro_batch, context);
  const std::vector<at::Tensor> outputs = run(main_[variant], hidden, micro_batch, context);
  if (parts_->loss == LossKind::kMean) {
    check_number(parts_->name, outputs[0]);
    return as_sum(outputs[0], micro_batch.target_count);
  }
  if (parts_->loss == LossKind::kSumCount) {
    check_number(parts_->name, outputs[0]);
    check(outputs[1].numel() == 1, ErrorCode::kInvalidArgument, "block ", parts_->name,
          ": the program counts ", outputs[1].sizes(), "; expected one number");
    return at::cat(
        {outputs[0].to(at::kFloat).reshape({1}), outputs[1].detach().to(at::kFloat).reshape({1})});
  }
  check_classes(outputs[0], micro_batch.labels);
  const auto [loss, correct] = classification_loss(outputs[0], micro_batch.labels);
  return at::stack(
      {outputs.size() == 1 ? loss : with_auxiliary(loss, outputs[1], micro_batch, context),
       correct});
}

// A mean of the micro-batch, which counts by its targets. Evaluations report the scores' loss.
at::Tensor ProgramBlock::with_auxiliary(const at::Tensor& sum, const at::Tensor& auxiliary,
                                        const MicroBatch& micro_batch,
                                        const BlockContext& context) const {
  if (!context.training) return sum;
  const double weight = parts_->auxiliary_weight * static_cast<double>(micro_batch.target_count);
  return sum + auxiliary.to(at::kFloat).reshape(sum.sizes()) * weight;
}

size_t ProgramBlock::place_of_rows(size_t variant) const {
  for (const Binding& binding : main_[variant].bindings) {
    if (binding.hidden >= 0) return static_cast<size_t>(binding.hidden);
  }
  fail(ErrorCode::kInternal, "block ", parts_->name, " has no hidden state");
}

at::Tensor ProgramBlock::scores_at(size_t variant, const std::vector<at::Tensor>& hidden,
                                   const at::Tensor& rows, const MicroBatch& micro_batch,
                                   const BlockContext& context) {
  std::vector<at::Tensor> given = hidden;
  given[place_of_rows(variant)] = rows.unsqueeze(0);
  return run(main_[variant], given, micro_batch, context)[0].squeeze(0);
}

at::Tensor ProgramBlock::loss_by_rows(size_t variant, const std::vector<at::Tensor>& hidden,
                                      const at::Tensor& labels, const MicroBatch& micro_batch,
                                      const BlockContext& context) {
  at::Tensor rows = hidden[place_of_rows(variant)].flatten(0, 1);
  at::Tensor trained = rows;  // a frozen head has none
  for (const Parameter& parameter : parameters_) {
    if (parameter.tensor.requires_grad()) trained = parameter.tensor;
  }
  const at::Tensor& positions = micro_batch.head_positions;
  if (positions.defined()) rows = rows.index_select(0, positions);
  const at::Tensor loss = chunked_loss(
      [&](const at::Tensor& chunk) {
        return scores_at(variant, hidden, chunk, micro_batch, context);
      },
      rows, labels, context.loss_gradient, trained, target_weights(micro_batch),
      parts_->variants[variant].ends_in_product);
  if (!auxiliary_[variant] || !context.training) return loss;
  return with_auxiliary(loss, run(*auxiliary_[variant], hidden, micro_batch, context)[0],
                        micro_batch, context);
}

at::Tensor ProgramBlock::loss_of_product(size_t variant, const std::vector<at::Tensor>& hidden,
                                         const MicroBatch& micro_batch,
                                         const BlockContext& context) {
  const size_t place = parts_->place_of(parts_->variants[variant].product->weight);
  const at::Tensor& weight = parameters_[place].tensor;
  const int64_t vocabulary = parts_->parameters[place].entry.shape[0];
  check_labels(micro_batch.labels, vocabulary);
  at::Tensor x = run(*before_product_[variant], hidden, micro_batch, context)[0];
  if (axis_.sequence_parallel()) x = own_tokens(x, axis_);  // which the loss gathers again
  const at::Tensor loss = vocab_parallel_cross_entropy(x, weight,
                                                       {.labels = micro_batch.labels,
                                                        .positions = micro_batch.head_positions,
                                                        .weights = target_weights(micro_batch),
                                                        .chunk_rows = kLossChunkRows},
                                                       context.loss_gradient, vocabulary, axis_);
  if (!auxiliary_[variant] || !context.training) return loss;
  return with_auxiliary(loss, run(*auxiliary_[variant], hidden, micro_batch, context)[0],
                        micro_batch, context);
}

at::Tensor ProgramBlock::causal_loss(size_t variant, const std::vector<at::Tensor>& hidden,
                                     const MicroBatch& micro_batch, const BlockContext& context) {
  const at::Tensor& positions = micro_batch.head_positions;
  const auto chosen = [&](const at::Tensor& rows) {
    return positions.defined() ? rows.index_select(0, positions) : rows;
  };
  const at::Tensor labels = chosen(micro_batch.labels.flatten());
  if (before_product_[variant]) {
    return loss_of_product(variant, hidden, micro_batch, context).reshape({1});
  }
  if (parts_->variants[variant].acts_on_rows) {
    return loss_by_rows(variant, hidden, labels, micro_batch, context).reshape({1});
  }
  const std::vector<at::Tensor> outputs = run(main_[variant], hidden, micro_batch, context);
  check(outputs[0].dim() == 3, ErrorCode::kInvalidArgument, "block ", parts_->name,
        ": the program gives scores ", outputs[0].sizes(), "; expected [rows, tokens, classes]");
  const at::Tensor loss =
      loss_of_scores(chosen(outputs[0].flatten(0, -2)), labels, target_weights(micro_batch));
  if (outputs.size() == 1) return loss.reshape({1});
  return with_auxiliary(loss, outputs[1], micro_batch, context).reshape({1});
}

at::Tensor ProgramBlock::logits(const at::Tensor& hidden, const MicroBatch& micro_batch,
                                const BlockContext& context) {
  check(parts_->loss == LossKind::kCausal || parts_->loss == LossKind::kClassification,
        ErrorCode::kInvalidArgument, "block ", parts_->name,
        ": the program gives its loss and no scores");
  const size_t variant = choose(hidden, context.training);
  const std::vector<at::Tensor> given = hidden_of(variant, hidden, micro_batch);
  const at::Tensor& positions = micro_batch.head_positions;
  const bool some = positions.defined() && parts_->loss == LossKind::kCausal;
  if (some && parts_->variants[variant].acts_on_rows) {
    const at::Tensor rows = given[place_of_rows(variant)].flatten(0, 1).index_select(0, positions);
    return scores_at(variant, given, rows, micro_batch, context);
  }
  const at::Tensor scores = run(main_[variant], given, micro_batch, context)[0];
  return some ? scores.flatten(0, 1).index_select(0, positions) : scores;
}

}  // namespace tessera::program
