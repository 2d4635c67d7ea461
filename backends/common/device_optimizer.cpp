// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <algorithm>

#include "tessera/backends/unit_optimizer.h"

namespace tessera {

int UnitOptimizerContext::shard_of(size_t unit) const {
  const Communicator* const holders = units[unit].holders;
  return holders == nullptr ? shard_rank : holders->rank();
}

at::Tensor compact_shard(const FlatLayout& layout, const at::Tensor& full, int shard_rank) {
  std::vector<at::Tensor> parts;
  for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
    parts.push_back(slice_of(full, layout.owned(segment, shard_rank)));
  }
  return at::cat(parts);
}

void DeviceOptimizer::adopt(size_t unit, const at::Tensor& full_fp32) {
  masters_.resize(unit + 1);
  if (context_.parameter_dtype == at::kFloat || context_.units[unit].frozen) return;
  const at::Tensor own =
      compact_shard(context_.units[unit].layout, full_fp32, context_.shard_of(unit));
  if (!context_.splits_masters) {
    masters_[unit] = own;
    return;
  }
  // The parameter store owns the other half of the values.
  const SplitMaster split{at::empty_like(own, at::kBFloat16), at::empty_like(own, at::kShort)};
  split.set(own);
  masters_[unit] = split.remainder;
}

void DeviceOptimizer::prepare(ParameterStore& parameters, GradientStore& gradients,
                              const OptimizerFactory& factory) {
  parameters_ = &parameters;
  std::vector<OptimizerRange> ranges;
  for (size_t u = 0; u < context_.units.size(); ++u) {
    const size_t first = ranges.size();
    const FlatLayout& layout = context_.units[u].layout;
    const size_t segments = context_.units[u].frozen ? 0 : layout.segments().size();
    for (size_t segment = 0; segment < segments; ++segment) {
      const int64_t begin = layout.owned(segment, context_.shard_of(u)).offset;
      for (const OwnedRun& run : layout.owned_runs(segment, context_.shard_of(u))) {
        OptimizerRange range;
        const MasterValues all = master(u, segment);
        if (all.split.defined()) {
          range.remainder = slice_of(all.split.remainder, run.range, begin);
        } else {
          range.parameter = slice_of(all.whole, run.range, begin);
        }
        range.gradient = slice_of(gradients.owned(u, segment), run.range, begin);
        if (masters_[u].defined()) {
          range.low_precision = slice_of(parameters.owned(u, segment), run.range, begin);
        }
        range.weight_decay = run.weight_decay;
        range.small = run.small;
        range.rule = run.rule;
        range.placed = context_.units[u].placed;
        range.begin = run.range.offset;
        places_.push_back(run.range);
        small_.push_back(run.small);
        ranges.push_back(std::move(range));
      }
    }
    ranges_.emplace_back(first, ranges.size() - first);
  }
  if (ranges.empty()) {  // all frozen here; the optimizer still needs its device
    const at::Tensor nothing =
        at::empty({0}, at::TensorOptions(at::kFloat).device(context_.device));
    ranges.push_back({.parameter = nothing, .gradient = nothing});
  }
  optimizer_ = factory(std::move(ranges));
}

void DeviceOptimizer::step(const StepScalars& scalars) {
  optimizer_->begin_step(scalars);
  // Publishing a unit overlaps the next unit's update. With unsharded units nothing is published,
  // so everything is updated at once.
  const bool alone = std::ranges::all_of(
      context_.units, [](const ParameterUnit& unit) { return unit.layout.shards() == 1; });
  if (alone) optimizer_->update(0, places_.size());
  for (size_t unit = 0; unit < ranges_.size(); ++unit) {
    if (context_.units[unit].frozen) continue;
    if (!alone) optimizer_->update(ranges_[unit].first, ranges_[unit].second);
    parameters_->publish(unit);
  }
}

MasterValues DeviceOptimizer::master(size_t unit, size_t segment) const {
  const at::Tensor parameter = parameters_->owned(unit, segment);
  if (!masters_[unit].defined()) return {parameter, {}};
  const at::Tensor kept = slice_of(masters_[unit], context_.units[unit].layout.compact(segment));
  if (context_.splits_masters) return {{}, {parameter, kept}};
  return {kept, {}};
}

FlatRange blocks_of(const StateFormat& format, const FlatRange& range) {
  return {range.offset / format.block, format.numel(range.numel)};
}

std::vector<KeptTensor> DeviceOptimizer::state(size_t unit, size_t, const FlatRange& part) const {
  size_t range = ranges_[unit].first;
  while (places_[range].offset + places_[range].numel <= part.offset) ++range;
  const NamedTensors state = optimizer_->state(range);
  const FlatRange place{part.offset - places_[range].offset, part.numel};
  std::vector<KeptTensor> kept;
  for (const StateFormat& format : optimizer_->state_formats(small_[range])) {
    kept.push_back({format, slice_of(state[kept.size()].second, blocks_of(format, place))});
  }
  return kept;
}

void DeviceOptimizer::add_memory(StrategyMemory& memory) const {
  memory.optimizer_bytes += optimizer_->state_bytes();
  for (const auto& tensor : masters_) {
    if (tensor.defined()) memory.optimizer_bytes += static_cast<int64_t>(tensor.nbytes());
  }
}

}  // namespace tessera
