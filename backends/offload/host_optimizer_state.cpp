// SPDX-License-Identifier: MIT
#include "backends/offload/host_optimizer_state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/core/host_memory.h"
#include "lib/core/meta.h"
#include "tessera/core/error.h"

namespace tessera {
HostOptimizerState::HostOptimizerState(const UnitOptimizerContext& context,
                                       const ParallelConfig& config, Communicator& world,
                                       const HostShare& share)
    : context_(context),
      config_(config),
      threads_(context.device.is_meta() ? 1 : thread_count(config.offload, share), share.cores),
      cores_(share.cores),
      world_(world),
      host_(share.host) {
  const int64_t shards = config_.offload.what == Offload::kOptimizerAndParameters
                             ? static_cast<int64_t>(c10::elementSize(context_.parameter_dtype))
                             : 0;
  require_host_memory(world_, host_, context_.expected_numel * (4 + shards), "master weights");
}

// is_state: memory that steps change permanently.
at::Tensor HostOptimizerState::allocate(int64_t numel, at::ScalarType dtype, bool crosses_link,
                                        bool is_state) {
  const bool pinned = crosses_link && config_.offload.pin_memory;
  at::Tensor tensor = host_zeros_beside(context_.device, numel, dtype, pinned, threads_);
  host_bytes_ += static_cast<int64_t>(tensor.nbytes());
  if (is_state) state_bytes_ += static_cast<int64_t>(tensor.nbytes());
  if (pinned && is_gpu(context_.device)) pinned_bytes_ += static_cast<int64_t>(tensor.nbytes());
  return tensor;
}

void HostOptimizerState::adopt(size_t unit, const at::Tensor& full_fp32) {
  const FlatLayout& layout = context_.units[unit].layout;
  units_.resize(unit + 1);
  if (context_.units[unit].frozen) return;  // no pieces, masters or state
  units_[unit].whole = {0, layout.shard_numel()};
  const bool host_shards = config_.offload.what == Offload::kOptimizerAndParameters;
  const bool all_on_host = host_shards && layout.resident_begin() == layout.numel();
  if (!is_16_bit() && !keeps_fp32_masters(all_on_host)) return;
  at::Tensor& master = units_[unit].master;
  const bool crosses_link = !update_device().is_cpu() || !is_16_bit();
  master = allocate(layout.shard_numel(), at::kFloat, crosses_link, /*is_state=*/true);
  for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
    slice_of(master, layout.compact(segment))
        .copy_(slice_of(full_fp32, layout.owned(segment, context_.shard_rank)));
  }
}

std::vector<Piece> HostOptimizerState::pieces_of(size_t unit,
                                                 const GradientStore& gradients) const {
  const FlatLayout& layout = context_.units[unit].layout;
  std::vector<Piece> pieces;
  if (context_.units[unit].frozen) return pieces;
  for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
    const int64_t begin = layout.owned(segment, context_.shard_rank).offset;
    const int64_t compact = layout.compact(segment).offset;
    for (const OwnedRun& run : layout.owned_runs(segment, context_.shard_rank)) {
      pieces.push_back({{compact + run.range.offset - begin, run.range.numel},
                        run.weight_decay,
                        run.small,
                        run.rule,
                        run.range.offset,
                        slice_of(gradients.owned(unit, segment), run.range, begin),
                        slice_of(parameters_->owned(unit, segment), run.range, begin),
                        parameters_->owned_on_host(unit, segment)});
    }
  }
  return pieces;
}

std::vector<at::Tensor> KeptPieces::state_of(const std::vector<StateFormat>& formats,
                                             const FlatRange& part) const {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < formats.size(); ++i) {
    parts.push_back(
        slice_of(state[i], blocks_of(formats[i], {part.offset - range.offset, part.numel})));
  }
  return parts;
}

const KeptPieces& HostOptimizerState::Unit::kept_at(int64_t element) const {
  const auto after = std::ranges::upper_bound(
      kept, element, {}, [](const KeptPieces& pieces) { return pieces.range.offset; });
  return *std::prev(after);
}

std::vector<KeptPieces> HostOptimizerState::kept_of(const std::vector<Piece>& pieces) {
  std::vector<KeptPieces> kept;
  for (const Piece& piece : pieces) {
    if (kept.empty() || kept.back().small != piece.small) {
      kept.push_back({.range = {piece.range.offset, 0}, .small = piece.small, .state = {}});
    }
    kept.back().range.numel += piece.range.numel;
  }
  return kept;
}

void HostOptimizerState::prepare(ParameterStore& parameters, GradientStore& gradients,
                                 const OptimizerFactory& factory) {
  parameters_ = &parameters;
  const at::Tensor nothing =
      at::empty({0}, at::TensorOptions().dtype(at::kFloat).device(update_device()));
  // Empty ranges with every rule in use, so that it can reject unsupported ones.
  std::vector<OptimizerRange> ranges{{.parameter = nothing, .gradient = nothing}};
  for (const ParameterUnit& unit : context_.units) {
    for (const FlatEntry& entry : unit.layout.entries()) {
      if (unit.frozen || entry.rule == UpdateRule{}) continue;
      ranges.push_back({.parameter = nothing, .gradient = nothing, .rule = entry.rule});
    }
  }
  optimizer_ = factory(std::move(ranges));
  for (const bool small : {false, true}) formats_[small ? 1 : 0] = optimizer_->state_formats(small);
  int64_t bytes = 0;
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = units_[u];
    unit.pieces = pieces_of(u, gradients);
    if (unit.pieces.empty()) continue;
    unit.kept = kept_of(unit.pieces);
    for (const KeptPieces& kept : unit.kept) {
      for (const StateFormat& format : formats(kept.small)) {
        bytes +=
            format.numel(kept.range.numel) * static_cast<int64_t>(c10::elementSize(format.dtype));
      }
    }
    for (auto type : staging_types(unit)) {
      bytes += static_cast<int64_t>(c10::elementSize(type)) * unit.whole.numel;
    }
  }
  require_host_memory(world_, host_, bytes, "optimizer state and staging");
  for (Unit& unit : units_) {
    if (unit.pieces.empty()) continue;
    for (KeptPieces& kept : unit.kept) {
      for (const StateFormat& format : formats(kept.small)) {
        kept.state.push_back(allocate(format.numel(kept.range.numel), format.dtype,
                                      /*crosses_link=*/!update_device().is_cpu(),
                                      /*is_state=*/true));
      }
    }
    for (auto type : staging_types(unit)) {
      unit.staging.push_back(allocate(unit.whole.numel, type, /*crosses_link=*/true,
                                      /*is_state=*/false));
    }
  }
  start();
}

MasterValues HostOptimizerState::master(size_t unit, size_t segment) const {
  if (!units_[unit].master.defined()) return {parameters_->owned(unit, segment), {}};
  return {slice_of(units_[unit].master, context_.units[unit].layout.compact(segment)), {}};
}

std::vector<KeptTensor> HostOptimizerState::state(size_t unit, size_t segment,
                                                  const FlatRange& part) const {
  const FlatLayout& layout = context_.units[unit].layout;
  const int64_t begin =
      layout.owned(segment, context_.shard_rank).offset - layout.compact(segment).offset;
  const FlatRange in_shard{part.offset - begin, part.numel};
  const KeptPieces& kept = units_[unit].kept_at(in_shard.offset);
  const std::vector<at::Tensor> state = kept.state_of(formats(kept.small), in_shard);
  std::vector<KeptTensor> tensors;
  for (size_t i = 0; i < state.size(); ++i) {
    tensors.push_back({formats(kept.small)[i], state[i]});
  }
  return tensors;
}

void HostOptimizerState::add_memory(StrategyMemory& memory) const {
  memory.host_bytes += host_bytes_;
  memory.host_state_bytes += state_bytes_;
  memory.pinned_bytes += pinned_bytes_;
}

}  // namespace tessera
