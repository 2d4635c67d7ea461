// SPDX-License-Identifier: MIT
#include "tessera/optim/matrix_optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

#include <set>

#include "lib/optim/matrix_updates.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

bool is_end(const std::string& word) {
  static const std::set<std::string> kEnds{"wte", "wpe", "head", "score", "classifier"};
  return kEnds.contains(word) || word.find("embed") != std::string::npos || word.ends_with("_head");
}

// Tries one update of a small matrix, which detects general defects.
void try_on(const MatrixOptimizer& optimizer, const std::vector<int64_t>& shape) {
  const at::NoGradGuard no_grad;
  const std::string name = "a matrix of shape " + concat(c10::IntArrayRef(shape));
  NamedTensors state;
  std::set<std::string> names;
  for (const auto& [kind, kept] : optimizer.state_shapes(shape)) {
    check(!kind.empty() && kind != "parameter" && names.insert(kind).second,
          ErrorCode::kInvalidArgument, optimizer.name(), ": a state named \"", kind,
          "\"; names must differ, and \"parameter\" is taken");
    state.emplace_back(kind, at::zeros(kept, at::kFloat));
  }
  const at::Tensor gradient = at::arange(1, shape[0] * shape[1] + 1, at::kFloat).view(shape);
  MatrixStep step{name, gradient.clone(), {}, at::ones({}, at::kFloat)};
  if (optimizer.reads_parameter()) step.parameter = gradient.clone();
  check_update(optimizer, shape, optimizer.update(step, state), state);
  check(optimizer.weight_decay() >= 0 && optimizer.lr_factor(shape) > 0 &&
            optimizer.relative_rate() > 0 && optimizer.cost(shape) >= 0,
        ErrorCode::kInvalidArgument, optimizer.name(),
        ": weight decay and cost must not be negative, and the learning rate's factors must be "
        "positive");
}

}  // namespace

void check_update(const MatrixOptimizer& optimizer, c10::IntArrayRef shape,
                  const at::Tensor& update, const NamedTensors& state) {
  check(update.defined() && update.sizes() == shape && update.is_floating_point(),
        ErrorCode::kInvalidArgument, optimizer.name(), ": the update of a matrix of shape ", shape,
        " is ",
        update.defined() ? concat(update.scalar_type(), " of shape ", update.sizes())
                         : std::string("undefined"),
        "; return a floating-point tensor of the gradient's shape");
  const MatrixOptimizer::NamedShapes kept = optimizer.state_shapes(shape);
  bool same = state.size() == kept.size();
  for (size_t i = 0; same && i < kept.size(); ++i) {
    same = state[i].first == kept[i].first && state[i].second.defined() &&
           state[i].second.sizes() == c10::IntArrayRef(kept[i].second);
  }
  check(same, ErrorCode::kInvalidArgument, optimizer.name(), ": the update of a matrix of shape ",
        shape, " left a state of other names or shapes than state_shapes() gives");
}

int64_t state_numel(const MatrixOptimizer& optimizer, c10::IntArrayRef shape) {
  int64_t numel = 0;
  for (const auto& [kind, kept] : optimizer.state_shapes(shape)) {
    numel += c10::multiply_integers(kept);
  }
  return numel;
}

MatrixPredicate hidden_matrices() {
  return [](const std::string& block, const std::string& parameter, c10::IntArrayRef) {
    const std::string name = block + "." + parameter;
    if (name.ends_with("_bias")) return false;  // of experts, a row each
    for (size_t begin = 0; begin <= name.size();) {
      const size_t end = std::min(name.find('.', begin), name.size());
      if (is_end(name.substr(begin, end - begin))) return false;
      begin = end + 1;
    }
    return true;
  };
}

OptimizerFactory with_matrices(std::shared_ptr<const MatrixOptimizer> optimizer,
                               MatrixPredicate chooses, OptimizerFactory others) {
  check(optimizer != nullptr && chooses && others, ErrorCode::kInvalidArgument,
        "with_matrices() needs an optimizer of matrices, a predicate that chooses them and an "
        "optimizer of all other elements; one of them is null");
  if (const WholeMatrices* nested = whole_matrices(others)) {
    fail(ErrorCode::kInvalidArgument, optimizer->name(),
         ": the optimizer beside it must treat every element alone, but ",
         nested->optimizer->name(), " looks at whole matrices, too; give make_adamw() or its like");
  }
  try_on(*optimizer, {2, 3});
  try_on(*optimizer, {3, 2});
  return WholeMatrices{std::move(optimizer), std::move(chooses), std::move(others)};
}

std::unique_ptr<Optimizer> WholeMatrices::operator()(const std::vector<OptimizerRange>&) const {
  fail(ErrorCode::kInvalidArgument, optimizer->name(),
       " looks at whole matrices, but was asked to update elements. A strategy of your own takes "
       "whole_matrices(optimizer) apart first; an optimizer that wraps another wraps the one given "
       "to with_matrices()");
}

const WholeMatrices* whole_matrices(const OptimizerFactory& optimizer) {
  return optimizer.target<WholeMatrices>();
}

}  // namespace tessera
