// What follows from the placement of parameters once a step: sums over ranks that hold one value,
// and the norm, in which every element counts once.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "lib/comm/operation_scope.h"
#include "lib/core/trace.h"
#include "lib/ops/update.h"
#include "tessera/backends/sharding_strategy.h"
#include "tessera/core/phase_clock.h"

namespace tessera {

void ShardingStrategy::make_wire() {
  int64_t largest = 0;
  for (const ParameterUnit& unit : units_) {
    if (!unit.frozen) largest = std::max(largest, unit.layout.numel());
  }
  const PrecisionConfig& precision = config_.precision;
  wire_ = std::make_unique<GradientWire>(data_.device(), precision.gradient_dtype(),
                                         precision.reduce_dtype(), config_.bucket_bytes, largest);
}

// [Note: order of late sums]
// Pipelines make several communicators of holders, and ranks hold parameters in different orders.
// Sums start in the order of model.tied on every rank, those over the tensor axis before them.
void ShardingStrategy::prepare_sums(const ModelSpec& model) {
  std::vector<Communicator*> order;
  for (const TiedParameter& tie : model.tied) {
    if (tie.holders != nullptr) order.push_back(tie.holders);
  }
  auto late_sum = [&](Communicator* ranks) -> LateSum& {
    auto found = std::find_if(late_sums_.begin(), late_sums_.end(),
                              [&](const LateSum& sum) { return sum.ranks == ranks; });
    if (found == late_sums_.end()) found = late_sums_.insert(found, LateSum{.ranks = ranks});
    return *found;
  };
  // Every element is counted by one rank of the data axis: its owner, or the first.
  const bool sharded = cut().shards > 1;
  norm_is_shared_ = sharded || sharers_ > 1;
  const Communicator* equals = equal_shards();
  const bool counts = !norm_is_shared_ || equals == nullptr || equals->rank() == 0;
  sums_late_.assign(units_.size(), false);
  for (size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].frozen) continue;
    const FlatLayout& layout = units_[u].layout;
    for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
      const int64_t begin = layout.owned(segment, shards_->rank()).offset;
      for (const OwnedRun& run : layout.owned_runs(segment, shards_->rank())) {
        const at::Tensor gradient = slice_of(gradients_->owned(u, segment), run.range, begin);
        const Placement held{.holders = run.holders};
        if (counts && held.first_holder()) norm_terms_.push_back(gradient);
        for (const Holders& holders : run.holders) {
          if (!holders.partial) continue;
          LateSum& sum = late_sum(holders.ranks);
          (units_[u].apart ? sum.alone : sum.together).push_back(gradient);
          sums_late_[u] = true;
        }
      }
    }
  }
  auto place = [&](const LateSum& sum) {
    return std::find(order.begin(), order.end(), sum.ranks) - order.begin();
  };
  const auto others = static_cast<int64_t>(order.size());
  std::stable_sort(late_sums_.begin(), late_sums_.end(), [&](const LateSum& a, const LateSum& b) {
    auto key = [&](const LateSum& sum) { return place(sum) == others ? -1 : place(sum); };
    return key(a) < key(b);
  });
  const auto dtype = config_.precision.reduce_dtype();
  for (LateSum& sum : late_sums_) {
    int64_t numel = 0;
    for (const at::Tensor& gradient : sum.together) numel += gradient.numel();
    sum.staging = at::empty({numel}, at::TensorOptions().dtype(dtype).device(data_.device()));
  }
}

Communicator* ShardingStrategy::equal_shards() const {
  return cut().shards > 1 ? replicas_ : &data_;
}

std::vector<at::Tensor> ShardingStrategy::owned_gradients(size_t unit) const {
  std::vector<at::Tensor> owned;
  for (size_t segment = 0; segment < units_[unit].layout.segments().size(); ++segment) {
    owned.push_back(gradients_->owned(unit, segment));
  }
  return owned;
}

// The store has summed the unit's gradient of this step over the shards' ranks; other ranks may
// hold parts of the sum.
void ShardingStrategy::gradient_reduced(size_t unit) {
  const InPhase phase("reduce");
  const ForTensor of(units_[unit].name);
  if (replicas_ != nullptr) {
    reductions_.push_back(wire_->all_reduce(*replicas_, owned_gradients(unit)));
    if (!config_.overlap) reductions_.back().wait();
  } else if (!sums_late_[unit]) {
    optimizer_->gradient_ready(unit);
  }
}

void ShardingStrategy::finish_sums() {
  for (Reduction& sum : reductions_) sum.wait();
  reductions_.clear();
  const ForTensor of("parameters that several ranks hold");
  // All launched before any is waited for: holders differ by unit.
  for (const LateSum& late : late_sums_) {
    if (!late.alone.empty()) reductions_.push_back(wire_->all_reduce(*late.ranks, late.alone));
    if (late.together.empty()) continue;
    int64_t offset = 0;
    for (const at::Tensor& gradient : late.together) {
      late.staging.narrow(0, offset, gradient.numel()).copy_(gradient);
      offset += gradient.numel();
    }
    works_.push_back(late.ranks->all_reduce(late.staging));
  }
  for (Reduction& sum : reductions_) sum.wait();
  reductions_.clear();
  for (Work& work : works_) work.wait();
  works_.clear();
  for (const LateSum& late : late_sums_) {
    int64_t offset = 0;
    for (const at::Tensor& gradient : late.together) {
      at::Tensor(gradient).copy_(late.staging.narrow(0, offset, gradient.numel()));
      offset += gradient.numel();
    }
  }
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const bool told = replicas_ == nullptr && !sums_late_[unit];
    if (!told && !units_[unit].frozen) optimizer_->gradient_ready(unit);
  }
}

at::Tensor ShardingStrategy::grad_norm_squared() {
  enter();
  order_.require_gradient(name(), "grad_norm_squared()");
  const TraceRange range("grad_norm");
  const PhaseScope phase(Phase::kOptimizer);
  const InPhase named("step");
  const ForTensor of("norm of the gradient");
  const at::NoGradGuard no_grad;
  at::Tensor sum = norm_terms_.empty() ? at::zeros({1}, learning_rate_.options())
                                       : ops::square_sum(norm_terms_).reshape({1});
  if (norm_is_shared_) world_->all_reduce(sum).wait();
  if (gradient_scale_.defined()) sum = sum * gradient_scale_ * gradient_scale_;
  return sum.squeeze(0);
}

}  // namespace tessera
