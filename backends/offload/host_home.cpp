#include "backends/offload/host_home.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/core/host_memory.h"
#include "tessera/core/error.h"

namespace tessera {
HostHome::HostHome(const UnitOptimizerContext& context, const ParallelConfig& config,
                   Communicator& world, const HostShare& share)
    : context_(context),
      config_(config),
      threads_(thread_count(config.offload, share), share.cores),
      cores_(share.cores),
      world_(world),
      host_(share.host) {
  const int64_t shards = config_.offload.what == Offload::kOptimizerAndParameters
                             ? static_cast<int64_t>(c10::elementSize(context_.parameter_dtype))
                             : 0;
  require_host_memory(world_, host_, context_.expected_numel * (4 + shards), "master weights");
}

at::Tensor HostHome::allocate(int64_t numel, at::ScalarType dtype, bool crosses_link) {
  const bool pinned = crosses_link && config_.offload.pin_memory && !context_.device.is_cpu();
  at::Tensor tensor = host_zeros(numel, dtype, pinned, threads_);
  host_bytes_ += static_cast<int64_t>(tensor.nbytes());
  if (pinned) pinned_bytes_ += static_cast<int64_t>(tensor.nbytes());
  return tensor;
}

void HostHome::adopt(size_t unit, const at::Tensor& full_fp32) {
  const FlatLayout& layout = context_.units[unit].layout;
  units_.resize(unit + 1);
  if (context_.units[unit].frozen) return;  // without pieces, masters and state
  units_[unit].whole = {0, layout.shard_numel()};
  const bool host_shards = config_.offload.what == Offload::kOptimizerAndParameters;
  const bool all_on_host = host_shards && layout.resident_begin() == layout.numel();
  if (!is_16_bit() && !keeps_fp32_masters(all_on_host)) return;
  at::Tensor& master = units_[unit].master;
  const bool crosses_link = !update_device().is_cpu() || !is_16_bit();
  master = allocate(layout.shard_numel(), at::kFloat, crosses_link);
  for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
    slice_of(master, layout.compact(segment))
        .copy_(slice_of(full_fp32, layout.owned(segment, context_.shard_rank)));
  }
}

std::vector<Piece> HostHome::pieces_of(size_t unit, const GradientStore& gradients) const {
  const FlatLayout& layout = context_.units[unit].layout;
  std::vector<Piece> pieces;
  if (context_.units[unit].frozen) return pieces;
  for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
    const int64_t begin = layout.owned(segment, context_.shard_rank).offset;
    const int64_t compact = layout.compact(segment).offset;
    for (const OwnedRun& run : layout.owned_runs(segment, context_.shard_rank)) {
      pieces.push_back({{compact + run.range.offset - begin, run.range.numel},
                        run.weight_decay,
                        run.rule,
                        run.range.offset,
                        slice_of(gradients.owned(unit, segment), run.range, begin),
                        slice_of(parameters_->owned(unit, segment), run.range, begin),
                        parameters_->owned_on_host(unit, segment)});
    }
  }
  return pieces;
}

void HostHome::prepare(ParameterStore& parameters, GradientStore& gradients,
                       const OptimizerFactory& factory) {
  parameters_ = &parameters;
  const at::Tensor nothing =
      at::empty({0}, at::TensorOptions().dtype(at::kFloat).device(update_device()));
  // Empty ranges of all rules that it will meet, for it to refuse what it does not know.
  std::vector<OptimizerRange> ranges{{.parameter = nothing, .gradient = nothing}};
  for (const ParameterUnit& unit : context_.units) {
    for (const FlatEntry& entry : unit.layout.entries()) {
      if (unit.frozen || entry.rule == UpdateRule{}) continue;
      ranges.push_back({.parameter = nothing, .gradient = nothing, .rule = entry.rule});
    }
  }
  optimizer_ = factory(std::move(ranges));
  const size_t states = optimizer_->state_names().size();
  int64_t bytes = 0;
  for (size_t u = 0; u < units_.size(); ++u) {
    units_[u].pieces = pieces_of(u, gradients);
    if (units_[u].pieces.empty()) continue;
    int64_t element = 4 * static_cast<int64_t>(states);
    for (auto type : staging_types(units_[u])) {
      element += static_cast<int64_t>(c10::elementSize(type));
    }
    bytes += element * units_[u].whole.numel;
  }
  require_host_memory(world_, host_, bytes, "optimizer state and staging");
  for (Unit& unit : units_) {
    if (unit.pieces.empty()) continue;
    for (size_t i = 0; i < states; ++i) {
      unit.state.push_back(
          allocate(unit.whole.numel, at::kFloat, /*crosses_link=*/!update_device().is_cpu()));
    }
    for (auto type : staging_types(unit)) {
      unit.staging.push_back(allocate(unit.whole.numel, type, /*crosses_link=*/true));
    }
  }
  start();
}

int64_t HostHome::largest_unit() const {
  int64_t most = 0;
  for (const Unit& unit : units_) most = std::max(most, unit.whole.numel);
  return most;
}

at::Tensor HostHome::master(size_t unit, size_t segment) const {
  if (!units_[unit].master.defined()) return parameters_->owned(unit, segment);
  return slice_of(units_[unit].master, context_.units[unit].layout.compact(segment));
}

NamedTensors HostHome::state(size_t unit, size_t segment, const FlatRange& part) const {
  const FlatLayout& layout = context_.units[unit].layout;
  const int64_t begin =
      layout.owned(segment, context_.shard_rank).offset - layout.compact(segment).offset;
  const std::vector<std::string> names = optimizer_->state_names();
  NamedTensors state;
  for (size_t i = 0; i < names.size(); ++i) {
    state.emplace_back(names[i], slice_of(units_[unit].state[i], part, begin));
  }
  return state;
}

void HostHome::add_memory(StrategyMemory& memory) const {
  memory.host_bytes += host_bytes_;
  memory.pinned_bytes += pinned_bytes_;
}

}  // namespace tessera
