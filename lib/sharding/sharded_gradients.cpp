#include <ATen/ops/zeros.h>

#include <utility>

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
    exclusive.push_back(units_[unit].handles.front().size() > 1);
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
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    states_[unit] = {states_[unit].shard, 0, false, units_[unit].uses};
  }
}

void ShardedGradients::wait_for_slot(size_t slot) {
  pending_[slot].pending.wait();
  if (pending_[slot].completes) reduced(*std::exchange(pending_[slot].completes, std::nullopt));
}

void ShardedGradients::before_backward(size_t unit) {
  if (states_[unit].uses_done > 0) return;  // partial sums of the unit's other block
  wait_for_slot(slots_->slot_of(unit));
  at::Tensor(slots_->buffer(unit)).zero_();
}

void ShardedGradients::after_backward(size_t unit, bool last_micro_batch) {
  State& state = states_[unit];
  if (last_micro_batch) --state.uses_left;
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
  const size_t slot = slots_->slot_of(unit);
  pending_[slot].pending = PendingReduction::launch(
      comm_, {{&units_[unit], full}}, [&](size_t, size_t segment) { return owned(unit, segment); },
      options_.reduce_dtype);
  if (state.uses_left == 0) pending_[slot].completes = unit;
  if (!options_.overlap) wait_for_slot(slot);
}

void ShardedGradients::finish() {
  for (size_t slot = 0; slot < pending_.size(); ++slot) wait_for_slot(slot);
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
