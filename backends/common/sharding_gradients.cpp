// SPDX-License-Identifier: MIT
// Gradients between backward and the step: divisors, and access by name.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <map>

#include "backends/common/attached_model.h"
#include "backends/common/replicated_gradient_reducer.h"
#include "backends/common/state_pieces.h"
#include "backends/common/step_agreement.h"
#include "lib/comm/operation_scope.h"
#include "lib/ops/update.h"
#include "tessera/backends/sharding_strategy.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

at::Tensor one_for_zero(const at::Tensor& divisor) {
  return at::where(divisor.eq(0), at::ones_like(divisor), divisor);
}

}  // namespace

// [Note: a gradient of several calls]
// Backward of the first call divides by its targets, `seed`, and so do all calls that accumulate.
// One factor remains, seed / total, with total the sum of all divisors; it is part of the update's
// gradient scale. When gradients are read or scaled, the factor is multiplied into them, and total
// becomes the seed.
void ShardingStrategy::begin_gradients(bool adds) {
  const at::NoGradGuard no_grad;
  if (!adds) {
    gradient_scale_.reset();
    divided_.reset();
    divisors_ = {};
    gradients_->begin_step();
    return;
  }
  const bool scaled = gradient_scale_.defined() && !gradient_scale_.is_same(divided_);
  if (scaled) fold_scale();
  gradient_scale_.reset();
  divided_.reset();
  divisors_.before = divisors_.total;
  optimizer_->gradients_reopened();
  replicated_reducer_->keep_once();
  gradients_->continue_step();
}

// Applies to a step that has ended; under gives_divisor() divisors are not targets.
void ShardingStrategy::settle_targets() {
  const at::Tensor targets = agreement_->targets().to(at::kDouble);
  if (!divisors_.seed.defined()) divisors_.seed = targets.clamp_min(1);
  if (divisors_.before.defined()) return settle_divisor(targets);
  divisors_.total = targets;
}

void ShardingStrategy::settle_divisor(const at::Tensor& divisor) {
  const at::NoGradGuard no_grad;
  const at::Tensor own = divisor.to(at::kDouble);
  divisors_.total = divisors_.before.defined() ? divisors_.before + own : own;
  divided_ = (divisors_.seed / one_for_zero(divisors_.total)).to(at::kFloat);
  gradient_scale_ = divided_;
}

void ShardingStrategy::fold_scale() {
  if (!gradient_scale_.defined()) return;
  optimizer_->gradients_reopened();
  for (size_t unit = 0; unit < units().size(); ++unit) {
    const size_t segments = units()[unit].frozen ? 0 : units()[unit].layout.segments().size();
    for (size_t segment = 0; segment < segments; ++segment) {
      gradients_->owned(unit, segment).mul_(gradient_scale_);
    }
  }
  gradient_scale_.reset();
  divided_.reset();
  if (divisors_.total.defined()) divisors_.seed = one_for_zero(divisors_.total);
}

void ShardingStrategy::require_gradient(const char* what) {
  enter();
  close_passes();
  agreement_->order().require_gradient(what);
}

void ShardingStrategy::for_each_gradient(const GradientVisitor& visitor) {
  require_gradient("for_each_gradient()");
  const at::NoGradGuard no_grad;
  fold_scale();
  optimizer_->gradients_reopened();
  const Communicator* equals = ranks_->shard_replicas;
  for (size_t u = 0; u < units().size(); ++u) {
    if (units()[u].frozen) continue;
    for (const UnitPiece& piece : pieces_of_unit(*model_, *ranks_, u)) {
      const FlatEntry& entry = units()[u].layout.entries()[piece.entry];
      const bool counted =
          (equals == nullptr || equals->rank() == 0) && entry.placement.is_first_replica();
      const at::Tensor value =
          slice_of(gradients_->owned(u, piece.segment), piece.part, piece.segment_begin);
      const std::string here = units()[u].blocks[piece.entry] + "." + entry.name;
      const auto owner = model_->owner_elsewhere.find(here);
      const bool tied = owner != model_->owner_elsewhere.end();
      visitor({tied ? owner->second : here, piece.slice, value, counted});
    }
  }
}

// Data and tensor ranks have the same parameters in the same order.
NamedTensors ShardingStrategy::squared_norms() {
  require_gradient("gradient_norms()");
  const at::NoGradGuard no_grad;
  const ForTensor of("norms of parameters");
  NamedTensors norms;
  std::map<std::string, size_t> places;
  for (const ParameterUnit& unit : units()) {
    if (unit.frozen) continue;
    for (size_t e = 0; e < unit.blocks.size(); ++e) {
      const std::string name = unit.blocks[e] + "." + unit.layout.entries()[e].name;
      if (model_->owner_elsewhere.contains(name)) continue;
      places[name] = norms.size();
      norms.emplace_back(name, at::Tensor());
    }
  }
  at::Tensor sums = at::zeros({static_cast<int64_t>(norms.size())}, learning_rate_.options());
  for_each_gradient([&](const GradientPiece& piece) {
    const auto place = places.find(piece.name);
    if (!piece.counted || place == places.end()) return;
    const std::array values{piece.value};
    sums[static_cast<int64_t>(place->second)].add_(ops::square_sum(values).squeeze());
  });
  data().all_reduce(sums).wait();
  if (ranks_->tensor() != nullptr) ranks_->tensor()->all_reduce(sums).wait();
  for (size_t i = 0; i < norms.size(); ++i) norms[i].second = sums[static_cast<int64_t>(i)];
  return norms;
}

NamedTensors ShardingStrategy::gradient_norms() {
  NamedTensors norms = squared_norms();
  for (auto& [name, value] : norms) value = value.sqrt();
  return norms;
}

}  // namespace tessera
