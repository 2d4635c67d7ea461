// The state of a ShardingStrategy as pieces of the model's tensors: views of what it keeps.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <initializer_list>

#include "tessera/backends/sharding_strategy.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// Elements `part` of the unit's flat buffer, which lie in the entry, as elements of the whole
// parameter.
TensorSlice slice_of_whole(const FlatEntry& entry, const FlatRange& part) {
  TensorSlice slice;
  slice.shape = entry.shape;
  slice.begin = part.offset - entry.range.offset;
  slice.end = slice.begin + part.numel;
  const Communicator* cut = entry.placement.cut;
  if (cut == nullptr) return slice;
  const TensorShard& shard = entry.placement.shard;
  slice.dim = shard.dim;
  slice.local_size = entry.shape[shard.dim];
  slice.shape[shard.dim] = shard.full_size;
  const int64_t local = slice.local_size / shard.parts, whole = shard.full_size / shard.parts;
  const int64_t first = cut->rank() * local;  // in each part
  const int64_t size = std::min(local, whole - first);
  for (int64_t i = 0; i < shard.parts; ++i) {
    slice.intervals.push_back({i * local, i * whole + first, size});
  }
  return slice;
}

TensorSlice whole(const at::Tensor& tensor) {
  TensorSlice slice;
  slice.shape = tensor.sizes().vec();
  slice.end = tensor.numel();
  return slice;
}

FlatRange overlap(const FlatRange& a, const FlatRange& b) {
  const int64_t begin = std::max(a.offset, b.offset);
  const int64_t end = std::min(a.offset + a.numel, b.offset + b.numel);
  return {begin, std::max<int64_t>(0, end - begin)};
}

std::vector<Communicator*> of_several(std::initializer_list<Communicator*> axes) {
  std::vector<Communicator*> several;
  for (Communicator* axis : axes) {
    if (axis != nullptr && axis->size() > 1) several.push_back(axis);
  }
  return several;
}

}  // namespace

std::vector<StateTensor> ShardingStrategy::state() {
  enter();
  const at::NoGradGuard no_grad;
  complete_all_units();
  std::vector<StateTensor> state;
  for (size_t unit = 0; unit < units_.size(); ++unit) add_unit_state(unit, state);
  for (size_t block = 0; block < blocks_.size(); ++block) add_buffer_state(block, state);
  const at::Tensor updates = optimizer_->step_count();
  const auto everyone = of_several({world_});
  state.push_back({"optimizer", "step_count", whole(updates), updates.view({1}), everyone});
  state.push_back(
      {"strategy", "steps_begun", whole(steps_begun_), steps_begun_.view({1}), everyone});
  return state;
}

void ShardingStrategy::add_unit_state(size_t u, std::vector<StateTensor>& state) {
  const ParameterUnit& unit = units_[u];
  const FlatLayout& layout = unit.layout;
  for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
    const FlatRange owned = layout.owned(segment, shards_->rank());
    const at::Tensor master =
        unit.frozen ? parameters_->owned(u, segment) : optimizer_->master(u, segment);
    for (size_t e = 0; e < layout.entries().size(); ++e) {
      const FlatEntry& entry = layout.entries()[e];
      const FlatRange part = overlap(entry.range, owned);
      if (part.numel == 0) continue;
      const std::string here = unit.blocks[e] + "." + entry.name;
      const auto owner = owner_elsewhere_.find(here);
      StateTensor piece{.name = owner == owner_elsewhere_.end() ? here : owner->second,
                        .kind = "parameter",
                        .slice = slice_of_whole(entry, part),
                        .value = slice_of(master, part, owned.offset),
                        .replicas = of_several({equal_shards()})};
      for (const Holders& held : entry.placement.holders) piece.replicas.push_back(held.ranks);
      state.push_back(piece);
      if (unit.frozen) continue;
      for (const auto& [kind, value] : optimizer_->state(u, segment, part)) {
        piece.kind = kind;
        piece.value = value;
        state.push_back(piece);
      }
    }
  }
}

// Running statistics are those of the rank that is named for them.
void ShardingStrategy::add_buffer_state(size_t block, std::vector<StateTensor>& state) {
  for (const Buffer& buffer : blocks_[block]->buffers()) {
    const bool constant = buffer.data_rank < 0;
    if (!constant && buffer.data_rank != data_.rank()) continue;
    const std::string name = block_names_[block] + "." + buffer.name;
    check(buffer.tensor.is_contiguous(), ErrorCode::kInvalidArgument, "buffer ", name,
          " is not contiguous, so its state has no 1-D view; make it so where the block is built");
    state.push_back({name, "buffer", whole(buffer.tensor), buffer.tensor.detach().view({-1}),
                     of_several({constant ? &data_ : nullptr, block_sharers_[block]})});
  }
}

void ShardingStrategy::state_restored() {
  enter();
  order_.forget_gradient();
  const at::NoGradGuard no_grad;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const size_t segments = units_[unit].frozen ? 0 : units_[unit].layout.segments().size();
    for (size_t segment = 0; segment < segments; ++segment) {
      const at::Tensor master = optimizer_->master(unit, segment);
      const at::Tensor read = parameters_->owned(unit, segment);
      if (!read.is_alias_of(master)) read.copy_(master);
    }
    parameters_->publish(unit);
  }
  for (const auto& block : blocks_) {
    // Whoever writes through raw pointers leaves no trace for those that keep copies.
    for (Buffer& buffer : block->buffers()) buffer.tensor.unsafeGetTensorImpl()->bump_version();
  }
  adopt_statistics();
}

}  // namespace tessera
