// SPDX-License-Identifier: MIT
#include "lib/model/loss_check.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <cmath>
#include <optional>
#include <set>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using torch::autograd::Node;
namespace nodes = torch::autograd::generated;

bool gives_scalar(const Node& node) {
  if (node.num_inputs() != 1) return false;
  for (const c10::SymInt& size : node.input_metadata(0).shape_as_dim_vector()) {
    if (size.maybe_as_int().value_or(0) != 1) return false;
  }
  return true;
}

bool divides(const Node& node) {
  return node.name().starts_with("MeanBackward") || node.name().starts_with("DivBackward");
}

// A LibTorch loss: its reduction, number of elements, and class weights.
struct KnownLoss {
  const char* name;
  int64_t reduction;
  int64_t elements = 0;  // 0: the rows, or unknown
  bool weighted = false;
};

template <typename Loss>
void find_elementwise(const char* name, const Node& node, std::optional<KnownLoss>& found) {
  const auto* loss = dynamic_cast<const Loss*>(&node);
  if (loss != nullptr) found = {name, loss->reduction, loss->self_.unpack().numel()};
}
template <typename Loss>
void find_classes(const Node& node, std::optional<KnownLoss>& found) {
  const auto* loss = dynamic_cast<const Loss*>(&node);
  if (loss != nullptr) {
    found = {"cross_entropy or nll_loss", loss->reduction, 0, loss->weight_.unpack().defined()};
  }
}

std::optional<KnownLoss> known_loss(const Node& node) {
  std::optional<KnownLoss> found;
  find_elementwise<nodes::MseLossBackward0>("mse_loss", node, found);
  find_elementwise<nodes::SmoothL1LossBackward0>("smooth_l1_loss", node, found);
  find_elementwise<nodes::HuberLossBackward0>("huber_loss", node, found);
  find_elementwise<nodes::BinaryCrossEntropyBackward0>("binary_cross_entropy", node, found);
  find_classes<nodes::NllLossBackward0>(node, found);
  find_classes<nodes::NllLoss2DBackward0>(node, found);
  return found;
}

// Losses and divisions in the graph of a result.
struct Origin {
  std::vector<KnownLoss> losses;
  bool divided = false;
};

void follow(const Node* node, bool is_result, std::set<const Node*>& seen, Origin& origin) {
  if (node == nullptr || !seen.insert(node).second) return;
  if (!is_result && !gives_scalar(*node)) return;
  origin.divided |= divides(*node);
  if (const auto loss = known_loss(*node)) {
    origin.losses.push_back(*loss);
    origin.divided |= loss->reduction == at::Reduction::Mean;
    return;
  }
  const bool sums = node->name().starts_with("SumBackward");
  for (const auto& edge : node->next_edges()) {
    if (sums && edge.function != nullptr) origin.divided |= divides(*edge.function);
    follow(edge.function.get(), false, seen, origin);
  }
}

MicroBatch every_row_twice(MicroBatch batch) {
  const int64_t rows = batch.input_ids.defined() && batch.input_ids.dim() > 0
                           ? batch.input_ids.size(0)
                           : batch.sample_count;
  const auto twice = [](at::Tensor& tensor) {
    if (tensor.defined() && tensor.dim() > 0) tensor = at::cat({tensor, tensor});
  };
  for (at::Tensor* tensor : {&batch.input_ids, &batch.labels, &batch.attention_mask}) {
    twice(*tensor);
  }
  for (auto& [name, tensor] : batch.extra) {
    if (tensor.dim() > 0 && tensor.size(0) == rows) twice(tensor);
  }
  batch.sample_count *= 2;
  batch.token_count *= 2;
  batch.target_count *= 2;
  return batch;
}

}  // namespace

void LossCheck::check(const at::Tensor& result, const MicroBatch& micro_batch,
                      const LossOf& loss_of_twice) {
  check_shape(result);
  check_known(result, /*divided_by_own=*/false, micro_batch, loss_of_twice, nullptr);
}

void LossCheck::check(const LossResult& result, const MicroBatch& micro_batch,
                      const LossOf& again) {
  if (reduction_ == LossReduction::kNone) return;
  check_known(result.loss, result.divisor.defined(), micro_batch, again, again);
}

void LossCheck::check_known(const at::Tensor& loss, bool divided_by_own,
                            const MicroBatch& micro_batch, const LossOf& loss_of_twice,
                            const LossOf& loss_of_once) {
  const int64_t targets = micro_batch.target_count;
  if (told_ || targets <= 1 || loss.grad_fn() == nullptr) return;
  Origin origin;
  std::set<const Node*> seen;
  follow(loss.grad_fn().get(), /*is_result=*/true, seen, origin);
  const at::Tensor& labels = micro_batch.labels;
  for (const KnownLoss& known : origin.losses) {
    const bool mean = reduction_ == LossReduction::kMean;
    tessera::check(
        !mean || known.reduction == at::Reduction::Mean || origin.divided,
        ErrorCode::kInvalidArgument, "block ", block_, ": the loss is ", known.name,
        " with reduction(torch::kSum), but ModuleOptions::reduction declares a mean; declare "
        "LossReduction::kSum");
    tessera::check(!known.weighted || divided_by_own ||
                       known.reduction == (mean ? at::Reduction::Sum : at::Reduction::Mean),
                   ErrorCode::kInvalidArgument, "block ", block_, ": the loss is ", known.name,
                   " with class weights: LibTorch divides it by the sum of the weights, "
                   "but a strategy by the number of targets. Return that sum as "
                   "LossResult::divisor (from_callable), or sum the losses of reduction none, each "
                   "times its weight, where the number of targets is meant");
    if (mean || known.reduction != at::Reduction::Sum || divided_by_own) continue;
    const bool rows = labels.defined() && labels.is_floating_point() && labels.dim() > 0 &&
                      labels.numel() == known.elements && labels.size(0) == targets;
    tessera::check(!rows || known.elements == targets, ErrorCode::kInvalidArgument, "block ",
                   block_, ": the loss is ", known.name, " over labels of shape ", labels.sizes(),
                   ": LibTorch divides it by the ", known.elements,
                   " elements, but target_count is the ", targets,
                   " rows. Set MicroBatch::target_count to labels.numel() for the mean over "
                   "elements, or write the sum as (output - labels).square().sum() for the mean "
                   "over rows");
  }
  told_ = !origin.divided || reduction_ == LossReduction::kMean;
  if (told_ || loss_of_twice == nullptr || micro_batch.packed.defined() ||
      micro_batch.head_positions.defined() || loss.is_meta()) {
    return;
  }
  double once = loss.detach().flatten()[0].item<double>();
  if (once == 0 || !std::isfinite(once)) return;  // inconclusive
  told_ = true;
  const at::NoGradGuard no_grad;
  if (loss_of_once != nullptr) once = loss_of_once(micro_batch).flatten()[0].item<double>();
  tessera::check(
      !stays_when_rows_double(once, micro_batch, loss_of_twice), ErrorCode::kInvalidArgument,
      "block ", block_,
      ": the loss stays the same when every row is there twice, so it is no sum: a "
      "strategy would divide a mean by the ",
      targets,
      " targets again. Declare a mean (ModuleOptions{.reduction = LossReduction::kMean}), or "
      "return the SUM over the targets, with reduction(torch::kSum); "
      "set MicroBatch::target_count to 1 for a loss of the whole micro-batch");
}

void LossCheck::check_shape(const at::Tensor& result) const {
  const bool right =
      counters_ == 0 ? result.numel() == 1 : result.dim() == 1 && result.numel() == 1 + counters_;
  tessera::check(
      right, ErrorCode::kInvalidArgument, "block ", block_, ": the loss has shape ", result.sizes(),
      "; expected ", reduction_ == LossReduction::kMean ? "the mean" : "the SUM",
      " over the targets, ",
      counters_ == 0 ? std::string("a scalar")
                     : concat("and ", counters_, " counters behind it, [", 1 + counters_, "]"),
      ". Use reduction(torch::kSum), declare LossReduction::kNone for a loss a row, or say "
      "how many counters follow the sum (ModuleOptions::counters)");
}

bool LossCheck::stays_when_rows_double(double once, const MicroBatch& micro_batch,
                                       const LossOf& loss_of_twice) {
  try {
    const at::Tensor doubled = loss_of_twice(every_row_twice(micro_batch));
    const double twice = doubled.flatten()[0].item<double>();
    return std::abs(twice - once) <= 1e-4 * std::abs(once);
  } catch (const std::exception&) {
    return false;  // requires exactly these rows
  }
}

}  // namespace tessera
