// SPDX-License-Identifier: MIT
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "lib/comm/operation_scope.h"
#include "lib/sharding/bytes.h"
#include "lib/sharding/messages.h"
#include "lib/sharding/two_part_tables.h"
#include "tessera/core/error.h"
#include "tessera/sharding/gradient_store.h"

namespace tessera {

ShardedGradients::ShardedGradients(const std::vector<ParameterUnit>& units, Communicator& comm,
                                   StoreOptions options)
    : units_(units),
      comm_(comm),
      options_(options),
      states_(units.size()),
      messages_(std::make_unique<const Messages>(units)),
      tables_(std::make_unique<TwoPartTables>(units, comm, options)) {
  const auto tensor_options = at::TensorOptions().dtype(options.dtype).device(comm.device());
  std::vector<SlotUser> users;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const bool frozen = units_[unit].frozen;
    users.push_back({.numel = frozen ? 0 : units_[unit].layout.numel(),
                     .gather_group = units_[unit].gather_group,
                     .exclusive = units_[unit].apart});
    if (!frozen)
      states_[unit].shard = at::zeros({units_[unit].layout.shard_numel()}, tensor_options);
  }
  // Double buffering: one message's reduce-scatter overlaps the previous blocks' backward into the
  // other buffer.
  slots_ = std::make_unique<BufferSlots>(users, options.overlap ? 2 : 1, tensor_options);
  pending_.resize(slots_->slot_count());
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    buffers_.push_back(units_[unit].frozen
                           ? nullptr
                           : std::make_unique<GradientBuffer>(units_[unit], slots_->buffer(unit)));
    const auto& segments = units_[unit].layout.segments();
    for (size_t segment = 0; segment < segments.size() && !units_[unit].frozen; ++segment) {
      states_[unit].parts.push_back(
          {slice_of(slots_->buffer(unit), segments[segment]), owned(unit, segment)});
    }
  }
}

ShardedGradients::~ShardedGradients() = default;

void ShardedGradients::begin_step() {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    State& state = states_[unit];
    state.uses_done = 0;
    state.has_partial = false;
    state.uses_left = units_[unit].uses;
  }
}

void ShardedGradients::continue_step() {
  begin_step();
  for (State& state : states_) state.has_partial = true;
}

void ShardedGradients::complete_all() {
  for (Slot& slot : pending_) reduce_ready(slot);
  for (size_t slot = 0; slot < pending_.size(); ++slot) wait_for_slot(slot);
  for (size_t unit = units_.size(); unit-- > 0;) {  // in the order of backward
    if (buffers_[unit] == nullptr || states_[unit].uses_left <= 0) continue;
    if (!states_[unit].has_partial) states_[unit].shard.zero_();
    states_[unit].has_partial = true;
    states_[unit].uses_left = 0;
    reduced(unit);
  }
}

void ShardedGradients::wait_for_slot(size_t slot) {
  for (Pending& pending : std::exchange(pending_[slot].pending, {})) {
    pending.sum.wait();
    for (const Part& part : pending.parts) {
      if (part.completes) reduced(part.unit);
    }
  }
}

void ShardedGradients::before_backward(size_t unit) {
  if (states_[unit].uses_done > 0) return;  // partial sums of the unit's other block
  Slot& slot = pending_[slots_->slot_of(unit)];
  // Units of one gather_group lie side by side in the slot.
  const auto in_the_way = [&](size_t other) {
    return other == unit || units_[other].gather_group != units_[unit].gather_group;
  };
  const auto is_there = [&](const std::vector<Part>& parts) {
    return std::ranges::any_of(parts, in_the_way, &Part::unit);
  };
  for (const size_t other : slot.filling) {
    check(other == unit || !in_the_way(other), ErrorCode::kInternal, "the gradient of block ",
          units_[unit].name, " would replace that of block ", units_[other].name,
          ", which is not complete");
  }
  slot.filling.insert(unit);
  if (is_there(slot.ready)) reduce_ready(slot);
  if (std::ranges::any_of(slot.pending, is_there, &Pending::parts)) {
    wait_for_slot(slots_->slot_of(unit));
  }
  buffers_[unit]->begin();
}

std::shared_ptr<DeferredEmbeddingRows> ShardedGradients::deferred_rows() const {
  return tables_->deferred_rows();
}

void ShardedGradients::after_backward(size_t unit, bool last_micro_batch) {
  State& state = states_[unit];
  if (last_micro_batch) --state.uses_left;
  if (++state.uses_done < units_[unit].uses) {
    if (!last_micro_batch || !tables_->contains(unit)) return;
    complete(unit, /*completes=*/false);
    tables_->open(unit, slots_->buffer(unit));
    return;
  }
  state.uses_done = 0;
  if (tables_->is_open(unit)) {
    tables_->close(unit);
  } else {
    complete(unit, /*completes=*/state.uses_left == 0);
  }
}

// The last unit of a message starts its reduction.
void ShardedGradients::complete(size_t unit, bool completes) {
  buffers_[unit]->complete();
  Slot& slot = pending_[slots_->slot_of(unit)];
  slot.filling.erase(unit);
  slot.ready.push_back({unit, completes});
  const size_t message = messages_->of_unit[unit];
  const auto is_of_others = [&](const Part& part) {
    return messages_->of_unit[part.unit] != message;
  };
  const auto others = std::ranges::stable_partition(slot.ready, std::not_fn(is_of_others));
  if (slot.ready.size() - others.size() != messages_->trained[message]) return;
  std::vector<Part> waiting(others.begin(), others.end());
  slot.ready.erase(others.begin(), others.end());
  reduce_ready(slot);
  slot.ready = std::move(waiting);
}

// Units of other ranks have a reduction of their own.
void ShardedGradients::reduce_ready(Slot& slot) {
  const InPhase phase("reduce");
  while (!slot.ready.empty()) {
    const size_t first = slot.ready.front().unit;
    Communicator& ranks = units_[first].ranks(comm_);
    const ForTensor of(units_[first].name);
    std::vector<GradientReducer::Part> parts;
    std::vector<Part> together, others;
    for (const Part& ready : std::exchange(slot.ready, {})) {
      if (&units_[ready.unit].ranks(comm_) != &ranks) {
        others.push_back(ready);
        continue;
      }
      together.push_back(ready);
      State& state = states_[ready.unit];
      for (GradientReducer::Part& part : state.parts) part.add = state.has_partial;
      state.has_partial = true;
      parts.insert(parts.end(), state.parts.begin(), state.parts.end());
    }
    slot.ready = std::move(others);
    Reduction sum = options_.wire->reduce_scatter(ranks, parts);
    slot.pending.push_back({std::move(together), std::move(sum)});
    if (!options_.overlap) wait_for_slot(slots_->slot_of(first));
  }
}

void ShardedGradients::finish() {
  for (Slot& slot : pending_) reduce_ready(slot);
  tables_->start();
  for (size_t slot = 0; slot < pending_.size(); ++slot) wait_for_slot(slot);
  tables_->finish([this](size_t unit, size_t segment) { return owned(unit, segment); },
                  [this](size_t unit) { reduced(unit); });
}

void ShardedGradients::drop_step() {
  for (Slot& slot : pending_) {
    for (Pending& pending : slot.pending) pending.sum.wait();
    slot = {};
  }
  tables_->drop();
}

at::Tensor ShardedGradients::owned(size_t unit, size_t segment) const {
  return slice_of(states_[unit].shard, units_[unit].layout.compact(segment));
}

int64_t ShardedGradients::persistent_bytes() const {
  int64_t sum = 0;
  for (const auto& state : states_) sum += bytes_of(state.shard);
  return sum;
}

}  // namespace tessera
