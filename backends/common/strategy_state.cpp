// SPDX-License-Identifier: MIT
#include "backends/common/strategy_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <initializer_list>

#include "backends/common/parameter_visits.h"
#include "backends/common/state_blocks.h"
#include "backends/common/state_pieces.h"
#include "lib/checkpoint/block_slice.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

TensorSlice whole(const at::Tensor& tensor) {
  TensorSlice slice;
  slice.shape = tensor.sizes().vec();
  slice.end = tensor.numel();
  return slice;
}

std::vector<Communicator*> of_several(std::initializer_list<Communicator*> axes) {
  std::vector<Communicator*> several;
  for (Communicator* axis : axes) {
    if (axis != nullptr && axis->size() > 1) several.push_back(axis);
  }
  return several;
}

void add_unit_state(const StrategyState::Parts& kept, size_t u, std::vector<StateTensor>& state) {
  const ParameterUnit& unit = kept.model.units[u];
  for (const UnitPiece& own : pieces_of_unit(kept.model, kept.ranks, u)) {
    const FlatEntry& entry = unit.layout.entries()[own.entry];
    const MasterValues master =
        (unit.frozen ? MasterValues{kept.parameters.owned(u, own.segment), {}}
                     : kept.optimizer.master(u, own.segment))
            .narrow(own.part.offset - own.segment_begin, own.part.numel);
    const std::string here = unit.blocks[own.entry] + "." + entry.name;
    const auto owner = kept.model.owner_elsewhere.find(here);
    StateTensor piece{.name = owner == kept.model.owner_elsewhere.end() ? here : owner->second,
                      .kind = "parameter",
                      .slice = own.slice,
                      .value = master.whole,
                      .replicas = of_several({kept.ranks.shard_replicas_of(unit)}),
                      .frozen = unit.frozen,
                      .split = master.split};
    for (const Replicas& held : entry.placement.replicas) piece.replicas.push_back(held.ranks);
    if (unit.coded()) {
      piece.kind = "codes";
      piece.value = as_sent(piece.value);
    }
    state.push_back(piece);
    if (unit.frozen) continue;
    for (const auto& [format, value] : kept.optimizer.state(u, own.segment, own.part)) {
      StateTensor of_optimizer = piece;
      of_optimizer.kind = format.name;
      if (format.block > 1) of_optimizer.slice = slice_in_blocks(piece.slice, format.block);
      of_optimizer.value = value;
      of_optimizer.split = {};
      state.push_back(std::move(of_optimizer));
    }
  }
}

// Every rank that has a part of a matrix has its scale.
void add_scales(const StrategyState::Parts& kept, size_t u, std::vector<StateTensor>& state) {
  const ParameterUnit& unit = kept.model.units[u];
  for (size_t e = 0; e < unit.layout.entries().size() && unit.coded(); ++e) {
    const FlatEntry& entry = unit.layout.entries()[e];
    const at::Tensor scale = unit.scales.narrow(0, static_cast<int64_t>(e), 1);
    StateTensor piece{.name = unit.blocks[e] + "." + entry.name,
                      .kind = "scale",
                      .slice = whole(scale[0]),
                      .value = scale,
                      .replicas = of_several({&kept.ranks.data, entry.placement.cut}),
                      .frozen = true};
    for (const Replicas& held : entry.placement.replicas) piece.replicas.push_back(held.ranks);
    state.push_back(std::move(piece));
  }
}

// State of the matrices that this rank owns.
void add_matrix_state(const StrategyState::Parts& kept, std::vector<StateTensor>& state) {
  for (const MatrixState& of : kept.optimizer.matrix_states()) {
    const ParameterUnit& unit = kept.model.units[of.unit];
    StateTensor piece{.name = unit.placed[of.entry].name,
                      .kind = of.kind,
                      .slice = {.shape = of.shape, .end = of.value.numel()},
                      .value = of.value,
                      .replicas = {}};
    for (const Replicas& held : unit.layout.entries()[of.entry].placement.replicas) {
      piece.replicas.push_back(held.ranks);
    }
    state.push_back(std::move(piece));
  }
}

// Running statistics come from their data rank.
void add_buffer_state(const AttachedModel& model, size_t block, Communicator& data,
                      std::vector<StateTensor>& state) {
  for (const Buffer& buffer : model.blocks[block]->buffers()) {
    const bool constant = buffer.data_rank < 0;
    if (!constant && buffer.data_rank != data.rank()) continue;
    const std::string name = model.names[block] + "." + buffer.name;
    check(buffer.tensor.is_contiguous(), ErrorCode::kInvalidArgument, "buffer ", name,
          " is not contiguous, so its state has no 1-D view; make it so where the block is built");
    state.push_back({name, "buffer", whole(buffer.tensor), buffer.tensor.detach().view({-1}),
                     of_several({constant ? &data : nullptr, model.sharers[block]})});
  }
}

}  // namespace

std::vector<UnitPiece> pieces_of_unit(const AttachedModel& model, const ProcessGroups& ranks,
                                      size_t unit) {
  const FlatLayout& layout = model.units[unit].layout;
  std::vector<UnitPiece> pieces;
  for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
    const FlatRange owned = layout.owned(segment, ranks.shards_of(model.units[unit]).rank());
    for (size_t e = 0; e < layout.entries().size(); ++e) {
      const FlatEntry& entry = layout.entries()[e];
      const FlatRange part = overlap(entry.range, owned);
      if (part.numel == 0) continue;
      pieces.push_back({segment, e, part, owned.offset, slice_of_whole(entry, part)});
    }
  }
  return pieces;
}

bool StrategyState::settles(size_t unit) const {
  const ParameterUnit& of = parts_.model.units[unit];
  return parts_.splits_masters && !of.frozen && !of.matrices;
}

std::vector<StateTensor> StrategyState::pieces() const {
  const at::NoGradGuard no_grad;
  const size_t units = parts_.model.units.size();
  complete_all(parts_.optimizer, units);
  std::vector<StateTensor> state;
  for (size_t unit = 0; unit < units; ++unit) {
    add_unit_state(parts_, unit, state);
    add_scales(parts_, unit, state);
  }
  add_matrix_state(parts_, state);
  for (size_t b = 0; b < parts_.model.blocks.size(); ++b) {
    add_buffer_state(parts_.model, b, parts_.ranks.data, state);
  }
  const at::Tensor updates = parts_.optimizer.step_count();
  const at::Tensor& begun = parts_.steps_begun;
  const auto everyone = of_several({parts_.ranks.world});
  state.push_back({"optimizer", "step_count", whole(updates), updates.view({1}), everyone});
  state.push_back({"strategy", "steps_begun", whole(begun), begun.view({1}), everyone});
  return state;
}

void StrategyState::restored() const {
  const at::NoGradGuard no_grad;
  const std::vector<ParameterUnit>& units = parts_.model.units;
  parts_.optimizer.restored();
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const size_t segments = units[unit].frozen ? 0 : units[unit].layout.segments().size();
    for (size_t segment = 0; segment < segments; ++segment) {
      const at::Tensor master = parts_.optimizer.master(unit, segment).whole;
      if (!master.defined()) continue;  // both halves were written
      if (settles(unit)) settle(master);
      const at::Tensor read = parts_.parameters.owned(unit, segment);
      if (!read.is_alias_of(master)) read.copy_(master);
    }
    parts_.parameters.publish(unit);
  }
  for (const auto& block : parts_.model.blocks) {
    // Writes through raw pointers do not bump versions, on which cached copies rely.
    for (Buffer& buffer : block->buffers()) buffer.tensor.unsafeGetTensorImpl()->bump_version();
  }
  parts_.model.adopt_statistics(parts_.ranks.data);
}

}  // namespace tessera
