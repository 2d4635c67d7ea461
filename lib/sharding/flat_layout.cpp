// SPDX-License-Identifier: MIT
#include "tessera/sharding/flat_layout.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <tuple>

#include "tessera/core/error.h"

namespace tessera {

FlatRange overlap(const FlatRange& a, const FlatRange& b) {
  const int64_t begin = std::max(a.offset, b.offset);
  const int64_t end = std::min(a.offset + a.numel, b.offset + b.numel);
  return {begin, std::max<int64_t>(0, end - begin)};
}

namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

FlatLayout::FlatLayout(const std::vector<Parameter>& parameters, int shards,
                       ShardGranularity granularity, int64_t persistence_threshold,
                       const StateRules& state)
    : alignment_(std::lcm(kAlignment, state.block)), shards_(shards) {
  check(shards > 0, ErrorCode::kInternal, "FlatLayout: ", shards, " shards");
  const bool per_parameter = granularity == ShardGranularity::kParameter;
  auto persists = [&](const Parameter& parameter) {
    return per_parameter && parameter.tensor.numel() < persistence_threshold;
  };
  auto is_small = [&](const Parameter& parameter) {
    if (state.block > 1 && parameter.fp32_state) return true;
    return parameter.placement.shard.whole_numel(parameter.tensor.sizes()) < state.small_numel;
  };
  std::vector<const Parameter*> order;
  for (const auto& parameter : parameters) order.push_back(&parameter);
  std::stable_sort(order.begin(), order.end(), [&](const Parameter* a, const Parameter* b) {
    auto key = [&](const Parameter* p) {  // equal on all ranks
      const Placement& placement = p->placement;
      return std::tuple(persists(*p), is_small(*p), !p->weight_decay, placement.partial(),
                        placement.replicas.size(), std::string_view(p->rule.group));
    };
    return key(a) < key(b);
  });

  const int64_t segment_multiple = shards * alignment_;
  int64_t segment_begin = 0;
  int64_t offset = 0;
  auto close_segment = [&] {
    const int64_t length = round_up(offset - segment_begin, segment_multiple);
    if (length > 0) segments_.push_back({segment_begin, length});
    offset = segment_begin += length;
  };
  bool in_resident = false;
  for (const Parameter* parameter : order) {
    const bool resident = persists(*parameter);
    if (per_parameter && (!resident || !in_resident)) close_segment();
    if (resident && !in_resident) resident_begin_ = offset;
    in_resident = resident;
    entries_.push_back({parameter->name,
                        parameter->tensor.sizes().vec(),
                        {offset, parameter->tensor.numel()},
                        parameter->weight_decay,
                        parameter->placement,
                        static_cast<size_t>(parameter - parameters.data()),
                        parameter->rule,
                        is_small(*parameter)});
    offset += round_up(parameter->tensor.numel(), alignment_);
  }
  close_segment();
  numel_ = offset;
  if (!in_resident) resident_begin_ = numel_;
}

int64_t FlatLayout::counted_numel() const {
  int64_t sum = 0;
  for (const auto& entry : entries_) sum += entry.placement.counted_numel(entry.shape);
  return sum;
}

FlatRange FlatLayout::owned(size_t segment, int rank) const {
  const FlatRange& whole = segments_[segment];
  const int64_t part = whole.numel / shards_;
  return {whole.offset + part * (rank % shards_), part};
}

FlatRange FlatLayout::compact(size_t segment) const {
  return {segments_[segment].offset / shards_, segments_[segment].numel / shards_};
}

std::vector<OwnedRun> FlatLayout::owned_runs(size_t segment, int rank) const {
  const FlatRange range = owned(segment, rank);
  std::vector<OwnedRun> runs;
  int64_t position = range.offset;
  const int64_t end = range.offset + range.numel;
  for (size_t i = 0; i < entries_.size(); ++i) {  // padding belongs to the preceding entry
    const int64_t entry_end = i + 1 == entries_.size() ? numel_ : entries_[i + 1].range.offset;
    const int64_t until = std::min(entry_end, end);
    if (until <= position) continue;
    const bool decay = entries_[i].weight_decay;
    const std::vector<Replicas>& replicas = entries_[i].placement.replicas;
    const UpdateRule& rule = entries_[i].rule;
    if (!runs.empty() && runs.back().weight_decay == decay && runs.back().replicas == replicas &&
        runs.back().rule == rule && runs.back().small == entries_[i].small) {
      runs.back().range.numel += until - position;
    } else {
      runs.push_back({{position, until - position}, decay, replicas, rule, entries_[i].small});
    }
    position = until;
  }
  return runs;
}

at::Tensor view_of(const at::Tensor& flat, const FlatEntry& entry, int64_t base_offset) {
  return slice_of(flat, entry.range, base_offset).view(entry.shape);
}

at::Tensor slice_of(const at::Tensor& flat, const FlatRange& range, int64_t base_offset) {
  return flat.narrow(0, range.offset - base_offset, range.numel);
}

}  // namespace tessera
