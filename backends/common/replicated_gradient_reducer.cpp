// SPDX-License-Identifier: MIT
#include "backends/common/replicated_gradient_reducer.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/comm/operation_scope.h"
#include "lib/ops/update.h"

namespace tessera {

ReplicatedGradientReducer::ReplicatedGradientReducer(const Parts& parts) : parts_(parts) {
  const std::vector<ParameterUnit>& units = parts.model.units;
  // One data rank counts each element: its owner, or the first.
  norm_is_shared_ = parts.sharded || parts.ranks.sharers > 1 || parts.ranks.expert() != nullptr;
  sums_late_.assign(units.size(), false);
  for (size_t u = 0; u < units.size(); ++u) {
    if (units[u].frozen) continue;
    const Communicator* equals = parts.ranks.shard_replicas_of(units[u]);
    add_unit(u, !norm_is_shared_ || equals == nullptr || equals->rank() == 0);
  }
  order_sums();
  const auto options = at::TensorOptions().dtype(parts.reduce).device(parts.ranks.data.device());
  for (LateSum& sum : late_sums_) {
    int64_t numel = 0;
    for (const at::Tensor& gradient : sum.together) numel += gradient.numel();
    sum.staging = at::empty({numel}, options);
  }
}

void ReplicatedGradientReducer::add_unit(size_t u, bool counts) {
  const ParameterUnit& unit = parts_.model.units[u];
  const int shard = parts_.ranks.shards_of(unit).rank();
  for (size_t segment = 0; segment < unit.layout.segments().size(); ++segment) {
    const int64_t begin = unit.layout.owned(segment, shard).offset;
    for (const OwnedRun& run : unit.layout.owned_runs(segment, shard)) {
      const at::Tensor gradient = slice_of(parts_.gradients.owned(u, segment), run.range, begin);
      const Placement held{.replicas = run.replicas};
      if (counts && held.is_first_replica()) norm_terms_.push_back(gradient);
      for (const Replicas& replicas : run.replicas) {
        if (!replicas.partial) continue;
        LateSum& sum = late_sum(replicas.ranks);
        (unit.apart ? sum.alone : sum.together).push_back(gradient);
        sums_late_[u] = true;
      }
    }
  }
}

ReplicatedGradientReducer::LateSum& ReplicatedGradientReducer::late_sum(Communicator* ranks) {
  auto found = std::ranges::find(late_sums_, ranks, &LateSum::ranks);
  if (found == late_sums_.end()) found = late_sums_.insert(found, LateSum{.ranks = ranks});
  return *found;
}

// [Note: order of late sums]
// Pipelines make several communicators between stages, and ranks hold parameters in different
// orders. Reductions start with the tensor axis, then follow the order of the model's ties, on
// every rank.
void ReplicatedGradientReducer::order_sums() {
  const std::vector<Communicator*>& order = parts_.model.replicas_of_ties;
  const auto place = [&](const LateSum& sum) {
    const auto found = std::ranges::find(order, sum.ranks);
    return found == order.end() ? -1 : found - order.begin();
  };
  std::ranges::stable_sort(late_sums_, {}, place);
}

std::vector<at::Tensor> ReplicatedGradientReducer::owned_gradients(size_t unit) const {
  std::vector<at::Tensor> owned;
  for (size_t segment = 0; segment < parts_.model.units[unit].layout.segments().size(); ++segment) {
    owned.push_back(parts_.gradients.owned(unit, segment));
  }
  return owned;
}

void ReplicatedGradientReducer::reduced(size_t unit) {
  const InPhase phase("reduce");
  const ForTensor of(parts_.model.units[unit].name);
  if (parts_.ranks.replicas != nullptr) {
    reductions_.push_back(parts_.wire.all_reduce(*parts_.ranks.replicas, owned_gradients(unit)));
    if (!parts_.overlap) reductions_.back().wait();
  } else if (!sums_late_[unit]) {
    parts_.optimizer.gradient_ready(unit);
  }
}

void ReplicatedGradientReducer::finish() {
  for (Reduction& sum : reductions_) sum.wait();
  reductions_.clear();
  const ForTensor of("parameters that several ranks hold");
  // All start before any wait: replicas differ by unit.
  for (const LateSum& late : late_sums_) {
    if (!late.alone.empty()) reductions_.push_back(parts_.wire.all_reduce(*late.ranks, late.alone));
    if (late.together.empty()) continue;
    int64_t offset = 0;
    for (const at::Tensor& gradient : late.together) {
      late.staging.narrow(0, offset, gradient.numel()).copy_(gradient);
      offset += gradient.numel();
    }
    works_.push_back(late.ranks->all_reduce(late.staging));
  }
  drop_step();
  for (const LateSum& late : late_sums_) {
    int64_t offset = 0;
    for (const at::Tensor& gradient : late.together) {
      at::Tensor(gradient).copy_(late.staging.narrow(0, offset, gradient.numel()));
      offset += gradient.numel();
    }
  }
  const std::vector<ParameterUnit>& units = parts_.model.units;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const bool told = parts_.ranks.replicas == nullptr && !sums_late_[unit];
    if (!told && !units[unit].frozen) parts_.optimizer.gradient_ready(unit);
  }
}

void ReplicatedGradientReducer::drop_step() {
  for (Reduction& sum : reductions_) sum.wait();
  reductions_.clear();
  for (Work& work : works_) work.wait();
  works_.clear();
}

void ReplicatedGradientReducer::keep_once() {
  const bool copy = parts_.ranks.replicas != nullptr && parts_.ranks.replicas->rank() != 0;
  for (size_t u = 0; u < parts_.model.units.size(); ++u) {
    const ParameterUnit& unit = parts_.model.units[u];
    const int shard = parts_.ranks.shards_of(unit).rank();
    for (size_t segment = 0; !unit.frozen && segment < unit.layout.segments().size(); ++segment) {
      const int64_t begin = unit.layout.owned(segment, shard).offset;
      for (const OwnedRun& run : unit.layout.owned_runs(segment, shard)) {
        const bool elsewhere = std::ranges::any_of(run.replicas, [](const Replicas& held) {
          return held.partial && held.ranks->rank() != 0;
        });
        if (copy || elsewhere)
          slice_of(parts_.gradients.owned(u, segment), run.range, begin).zero_();
      }
    }
  }
}

at::Tensor ReplicatedGradientReducer::norm_squared() const {
  const auto options = at::TensorOptions(at::kFloat).device(parts_.ranks.data.device());
  at::Tensor sum =
      norm_terms_.empty() ? at::zeros({1}, options) : ops::square_sum(norm_terms_).reshape({1});
  if (norm_is_shared_) parts_.ranks.world->all_reduce(sum).wait();
  return sum;
}

int64_t ReplicatedGradientReducer::bytes() const {
  int64_t sum = 0;
  for (const LateSum& late : late_sums_) sum += static_cast<int64_t>(late.staging.nbytes());
  return sum;
}

}  // namespace tessera
