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

// A loss of LibTorch: how it was reduced, over how many elements, and whether its classes have
// weights.
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

// What the scalars were made by from which the result is.
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
  for (at::Tensor* tensor : {&batch.input_ids, &batch.labels, &batch.attention_mask}) {
    if (tensor->defined() && tensor->dim() > 0) *tensor = at::cat({*tensor, *tensor});
  }
  batch.sample_count *= 2;
  batch.token_count *= 2;
  batch.target_count *= 2;
  return batch;
}

}  // namespace

void LossCheck::check(const at::Tensor& result, const at::Tensor& output,
                      const MicroBatch& micro_batch) {
  check_shape(result);
  const int64_t targets = micro_batch.target_count;
  if (told_ || targets <= 1 || result.grad_fn() == nullptr) return;
  Origin origin;
  std::set<const Node*> seen;
  follow(result.grad_fn().get(), /*is_result=*/true, seen, origin);
  const at::Tensor& labels = micro_batch.labels;
  for (const KnownLoss& loss : origin.losses) {
    if (loss.reduction != at::Reduction::Sum) continue;
    tessera::check(!loss.weighted, ErrorCode::kInvalidArgument, "block ", block_, ": the loss is ",
                   loss.name,
                   " with class weights: LibTorch divides it by the sum of the weights, "
                   "but a strategy by the number of targets. Where that is meant, sum the losses "
                   "of reduction none, each times its weight");
    const bool rows = labels.defined() && labels.is_floating_point() && labels.dim() > 0 &&
                      labels.numel() == loss.elements && labels.size(0) == targets;
    tessera::check(!rows || loss.elements == targets, ErrorCode::kInvalidArgument, "block ", block_,
                   ": the loss is ", loss.name, " over labels of shape ", labels.sizes(),
                   ": LibTorch divides it by the ", loss.elements,
                   " elements, but target_count is the ", targets,
                   " rows. Set MicroBatch::target_count to labels.numel() for the mean over "
                   "elements, or write the sum as (output - labels).square().sum() for the mean "
                   "over rows");
  }
  told_ = !origin.divided;
  if (told_) return;
  tessera::check(!stays_when_rows_double(result, output, micro_batch), ErrorCode::kInvalidArgument,
                 "block ", block_,
                 ": the loss stays the same when every row is there twice, so it is no sum: a "
                 "strategy would divide a mean by the ",
                 targets,
                 " targets again. Return the SUM over the targets, with reduction(torch::kSum); "
                 "set MicroBatch::target_count to 1 for a loss of the whole micro-batch");
}

void LossCheck::check_shape(const at::Tensor& result) const {
  const bool right =
      counters_ == 0 ? result.numel() == 1 : result.dim() == 1 && result.numel() == 1 + counters_;
  tessera::check(right, ErrorCode::kInvalidArgument, "block ", block_, ": the loss has shape ",
                 result.sizes(), "; expected the SUM over the targets, ",
                 counters_ == 0
                     ? std::string("a scalar")
                     : concat("and ", counters_, " counters behind it, [", 1 + counters_, "]"),
                 ". Use reduction(torch::kSum), or say how many counters follow the sum "
                 "(ModuleOptions::counters)");
}

bool LossCheck::stays_when_rows_double(const at::Tensor& result, const at::Tensor& output,
                                       const MicroBatch& micro_batch) {
  if (micro_batch.packed.defined() || micro_batch.head_positions.defined() || output.dim() == 0) {
    return false;
  }
  const double once = result.detach().flatten()[0].item<double>();
  if (once == 0 || !std::isfinite(once)) return false;  // tells nothing
  told_ = true;
  try {
    const at::NoGradGuard no_grad;
    const at::Tensor doubled = loss_(at::cat({output, output}), every_row_twice(micro_batch));
    const double twice = doubled.flatten()[0].item<double>();
    return std::abs(twice - once) <= 1e-4 * std::abs(once);
  } catch (const std::exception&) {
    return false;  // it takes no other rows than these
  }
}

}  // namespace tessera
