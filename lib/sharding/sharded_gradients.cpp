#include <ATen/ops/zeros.h>

#include "tessera/sharding/gradient_store.h"

namespace tessera {

ShardedGradients::ShardedGradients(const std::vector<ParameterUnit>& units, Communicator& comm,
                                   StoreOptions options)
    : units_(units), comm_(comm), options_(options), states_(units.size()) {
  const auto tensor_options = at::TensorOptions().dtype(options.dtype).device(comm.device());
  std::vector<int64_t> numel;
  std::vector<bool> exclusive;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    numel.push_back(units_[unit].layout.numel());
    exclusive.push_back(units_[unit].uses > 1);
    states_[unit].shard = at::zeros({units_[unit].layout.shard_numel()}, tensor_options);
  }
  // Two buffers a size: one block's reduce-scatter runs while the next block's backward fills the
  // other.
  slots_ = std::make_unique<BufferSlots>(numel, exclusive, options.overlap ? 2 : 1, tensor_options);
  pending_.resize(slots_->slot_count());
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    bind_gradients(units_[unit], slots_->buffer(unit));
  }
}

void ShardedGradients::begin_step() {
  for (auto& state : states_) state = {state.shard, 0, false};
}

void ShardedGradients::before_backward(size_t unit) {
  if (states_[unit].uses_done > 0) return;  // partial sums of the unit's other block
  pending_[slots_->slot_of(unit)].wait();
  at::Tensor(slots_->buffer(unit)).zero_();
}

void ShardedGradients::after_backward(size_t unit, bool) {
  State& state = states_[unit];
  if (++state.uses_done < units_[unit].uses) return;
  state.uses_done = 0;
  const FlatLayout& layout = units_[unit].layout;
  const at::Tensor& full = slots_->buffer(unit);
  if (state.has_partial) {
    for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
      slice_of(full, layout.owned(segment, comm_.rank())).add_(owned(unit, segment));
    }
  }
  state.has_partial = true;
  PendingReduction& pending = pending_[slots_->slot_of(unit)];
  pending = PendingReduction::launch(
      comm_, {{&units_[unit], full}}, [&](size_t, size_t segment) { return owned(unit, segment); },
      options_.reduce_dtype);
  if (!options_.overlap) pending.wait();
}

void ShardedGradients::finish() {
  for (auto& reduction : pending_) reduction.wait();
}

at::Tensor ShardedGradients::owned(size_t unit, size_t segment) const {
  return slice_of(states_[unit].shard, units_[unit].layout.compact(segment));
}

int64_t ShardedGradients::persistent_bytes() const {
  int64_t sum = 0;
  for (const auto& state : states_) sum += static_cast<int64_t>(state.shard.nbytes());
  return sum;
}

}  // namespace tessera
