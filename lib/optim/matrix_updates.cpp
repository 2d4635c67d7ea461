// SPDX-License-Identifier: MIT
#include "lib/optim/matrix_updates.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/core/meta.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

class ApplyUpdates final : public Optimizer {
 public:
  ApplyUpdates(std::shared_ptr<const MatrixOptimizer> optimizer, std::vector<OptimizerRange> ranges)
      : optimizer_(std::move(optimizer)), ranges_(std::move(ranges)) {
    step_count_ = ranges_.empty() ? at::zeros({}, at::kDouble)
                                  : at::zeros({}, options_of(ranges_.front()).dtype(at::kDouble));
  }

  size_t range_count() const override { return ranges_.size(); }
  void begin_step(const StepScalars& scalars) override {
    const at::NoGradGuard no_grad;
    rate_ = scalars.learning_rate;
    if (scalars.skip.defined()) {
      const at::Tensor counts = scalars.skip.eq(0);
      step_count_.add_(counts);
      rate_ = at::where(counts, rate_, 0);  // updates are zeros, too: nothing changes
    } else {
      step_count_.add_(1);
    }
  }
  void update(size_t first, size_t count) override {
    for (size_t i = first; i < first + count; ++i) update_range(ranges_[i]);
  }
  void update(std::span<const ExternalRange> ranges) const override {
    for (const ExternalRange& external : ranges) update_range(external.range);
  }
  std::vector<std::string> state_names() const override { return {}; }
  NamedTensors state(size_t) const override { return {}; }
  at::Tensor step_count() const override { return step_count_; }
  int64_t state_bytes() const override { return 0; }

 private:
  static at::TensorOptions options_of(const OptimizerRange& range) {
    return range.parameter.options().requires_grad(false);
  }

  void update_range(const OptimizerRange& range) const {
    const at::NoGradGuard no_grad;
    const double decay = range.decay(optimizer_->weight_decay());
    const at::Tensor rate = rate_ * (range.rule.lr_factor * optimizer_->relative_rate());
    for (const RangePiece& piece : pieces_of(range)) {
      const at::Tensor parameter = range.parameter.narrow(0, piece.begin, piece.numel);
      const at::Tensor update = range.gradient.narrow(0, piece.begin, piece.numel);
      if (decay != 0) parameter.mul_(1 - rate * decay);
      const at::Tensor factor = rate * optimizer_->lr_factor(piece.parameter.shape);
      if (runs_on_gpu(parameter)) {  // fused
        parameter.addcmul_(update, factor, -1);
      } else {
        parameter.sub_(update.to(at::kFloat) * factor);
      }
    }
    if (range.low_precision.defined()) range.low_precision.copy_(range.parameter);
  }

  const std::shared_ptr<const MatrixOptimizer> optimizer_;
  const std::vector<OptimizerRange> ranges_;
  at::Tensor step_count_;
  at::Tensor rate_;  // rate of the step
};

using NameInBlock = std::pair<std::string, std::string>;

std::set<NameInBlock> chosen_of(const ModelSpec& model, const WholeMatrices& matrices) {
  std::set<NameInBlock> chosen;
  std::map<std::string, const BlockBuilder*> builders;
  for (const BlockBuilder& builder : model.blocks) builders[builder.name] = &builder;
  bool trains = false;
  for (const ParameterInfo& parameter : parameters_of(model)) {
    if (parameter.shape.size() != 2 || parameter.alias ||
        !matrices.chooses(parameter.block, parameter.name, parameter.shape)) {
      continue;
    }
    chosen.emplace(parameter.block, parameter.name);
    trains = trains || parameter.trained;
    const BlockBuilder& builder = *builders.at(parameter.block);
    if (!builder.revise) continue;
    Parameter revised{parameter.name, at::empty(parameter.shape, at::kMeta)};
    builder.revise(revised);
    check(!revised.rule.betas, ErrorCode::kInvalidArgument, "parameter group \"",
          revised.rule.group, "\" sets betas, which ", matrices.optimizer->name(),
          " does not have; it updates ", parameter.block, ".", parameter.name);
  }
  check(
      trains, ErrorCode::kInvalidArgument, matrices.optimizer->name(),
      " takes no parameter of model ", model.name,
      ": none that is trained has two dimensions and is chosen (hidden_matrices() leaves out "
      "embeddings and heads, by their names). Give a predicate that chooses some, or an optimizer "
      "of elements");
  for (const TiedParameter& tie : model.tied) {
    if (chosen.contains({tie.owner_block, tie.owner_parameter})) {
      chosen.emplace(tie.alias_block, tie.alias_parameter);
    }
  }
  return chosen;
}

}  // namespace

ModelSpec with_marked_matrices(ModelSpec model, const OptimizerFactory& optimizer) {
  const WholeMatrices* matrices = whole_matrices(optimizer);
  if (matrices == nullptr || model.matrices_marked) return model;
  const auto chosen = std::make_shared<const std::set<NameInBlock>>(chosen_of(model, *matrices));
  for (BlockBuilder& builder : model.blocks) {
    builder.revise = [before = std::move(builder.revise), chosen,
                      block = builder.name](Parameter& parameter) {
      if (before) before(parameter);
      parameter.rule.whole_matrix = chosen->contains({block, parameter.name});
    };
  }
  model.matrices_marked = true;
  return model;
}

OptimizerFactory apply_updates(std::shared_ptr<const MatrixOptimizer> optimizer) {
  return [optimizer = std::move(optimizer)](std::vector<OptimizerRange> ranges) {
    return std::make_unique<ApplyUpdates>(optimizer, std::move(ranges));
  };
}

}  // namespace tessera
