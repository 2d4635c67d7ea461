// SPDX-License-Identifier: MIT
#include "lib/model/loss_sums.h"

#include <ATen/ATen.h>

#include "tessera/core/error.h"

namespace tessera {
namespace {

std::string shape_of(const at::Tensor& tensor) {
  return tensor.defined() ? concat("shape ", tensor.sizes()) : std::string("no value");
}

void check_result(const std::string& block, const LossResult& result, LossReduction reduction,
                  int counters) {
  const bool number = result.loss.defined() && result.loss.numel() == 1;
  check(
      number || (reduction == LossReduction::kNone && result.loss.defined()),
      ErrorCode::kInvalidArgument, "block ", block, ": the loss has ", shape_of(result.loss),
      "; expected one number, or LossReduction::kNone (ModuleOptions::reduction) for losses one by "
      "one");
  check(!result.divisor.defined() || result.divisor.numel() == 1, ErrorCode::kInvalidArgument,
        "block ", block, ": LossResult::divisor has ", shape_of(result.divisor),
        "; expected one number");
  const int64_t given = result.counters.defined() ? result.counters.numel() : 0;
  check(given == counters, ErrorCode::kInvalidArgument, "block ", block, ": LossResult has ", given,
        " counters, but ModuleOptions::counters is ", counters, "; they must agree on all ranks");
}

}  // namespace

at::Tensor loss_sums(const std::string& block, const LossResult& result, LossReduction reduction,
                     int counters, const MicroBatch& micro_batch) {
  check_result(block, result, reduction, counters);
  const bool by_class = micro_batch.labels.defined() &&
                        at::isIntegralType(micro_batch.labels.scalar_type(), /*includeBool=*/true);
  const bool empty = micro_batch.target_count == 0 && !result.divisor.defined();
  const int64_t targets = reduction == LossReduction::kNone && !by_class && !empty
                              ? result.loss.numel()
                              : micro_batch.target_count;
  at::Tensor loss = result.loss.to(at::kFloat);
  const at::Tensor divisor = result.divisor.defined()
                                 ? result.divisor.detach().to(at::kFloat).reshape({1})
                                 : at::full({1}, targets, loss.options().requires_grad(false));
  if (empty && reduction != LossReduction::kSum) {
    loss = at::zeros({1}, divisor.options());
  } else if (reduction == LossReduction::kNone) {
    loss = loss.sum();
  } else if (reduction == LossReduction::kMean && result.divisor.defined()) {
    loss = at::where(divisor.eq(0), 0, loss.reshape({1}) * divisor);
  } else if (reduction == LossReduction::kMean) {
    loss = loss * targets;
  }
  std::vector<at::Tensor> sums{loss.reshape({1}), divisor};
  if (counters > 0) sums.push_back(result.counters.detach().to(at::kFloat).reshape({-1}));
  return at::cat(sums);
}

}  // namespace tessera
