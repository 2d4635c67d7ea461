// SPDX-License-Identifier: MIT
// Plan, buffers and owners' state of a MatrixExchange.
#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include "backends/common/matrix_exchange.h"
#include "lib/core/host_memory.h"
#include "lib/optim/matrix_updates.h"

namespace tessera {
namespace {

std::vector<MatrixUnit> matrix_units(const std::vector<ParameterUnit>& units) {
  std::vector<MatrixUnit> planned;
  for (const ParameterUnit& unit : units) {
    planned.push_back({&unit.layout, unit.matrices, unit.apart});
  }
  return planned;
}

}  // namespace

MatrixExchange::MatrixExchange(const Parts& parts) : parts_(parts) {
  const ProcessGroups& ranks = parts.ranks;
  const bool one_shard = parts.units.empty() || parts.units.front().layout.shards() == 1;
  if (!one_shard) {
    shards_ = ranks.shards->size();
    shard_ = ranks.shards->rank();
  }
  if (ranks.shard_replicas != nullptr) group_ = ranks.shard_replicas->rank();
  const int64_t update_width =
      static_cast<int64_t>(c10::elementSize(parts.optimizer.update_dtype()));
  const MatrixOwners owners = matrix_owners(
      matrix_units(parts.units), ranks.data.size() / shards_, parts.bucket_bytes / update_width,
      {[&](c10::IntArrayRef shape) { return parts.optimizer.cost(shape); },
       [&](c10::IntArrayRef shape) { return state_numel(parts.optimizer, shape); }});
  for (const MatrixRound& round : owners.rounds) add_round(round);
  const auto on_device = at::TensorOptions().device(parts.device);
  const auto updates = on_device.dtype(parts.optimizer.update_dtype());
  for (const ParameterUnit& unit : parts.units) {
    updates_.push_back(unit.matrices ? at::zeros({unit.layout.shard_numel()}, updates)
                                     : at::Tensor());
  }
  const MatrixRoom& room = owners.room;
  const auto fp32 = on_device.dtype(at::kFloat);
  const bool reads = parts.optimizer.reads_parameter();
  for (size_t half = 0; half < 2 && shards_ > 1; ++half) {
    gathered_[half] = at::empty({room.gathered}, on_device.dtype(parts.gradient));
    outgoing_[half] = at::empty({room.gathered}, updates);
    if (reads) gathered_masters_[half] = at::empty({room.gathered}, fp32);
  }
  slices_ = at::empty({room.slices}, on_device.dtype(parts.gradient));
  updates_of_slices_ = at::empty({room.slices}, updates);
  master_slices_ = at::empty({reads ? room.slices : 0}, fp32);
  gradient_ = at::empty({room.whole}, fp32);
  parameter_ = at::empty({reads ? room.whole : 0}, fp32);
  step_count_ = at::zeros({}, fp32.dtype(at::kDouble));
}

void MatrixExchange::add_round(const MatrixRound& planned) {
  Round& round = rounds_.emplace_back();
  round.cut = planned.cut;
  int64_t state = 0;
  for (const OwnedMatrix& owned : planned.matrices) {
    const ParameterUnit& unit = parts_.units[owned.unit];
    const FlatEntry& entry = unit.layout.entries()[owned.entry];
    Matrix matrix{.owned = owned,
                  .name = unit.placed[owned.entry].name,
                  .local = entry.shape,
                  .shape = whole_shape(entry),
                  .placement = entry.placement};
    matrix.here = owned.group == group_ && owned.shard == shard_;
    matrix.mine = matrix.here && (round.cut == nullptr || round.cut->rank() == owned.slice);
    if (matrix.mine) {
      for (const auto& [kind, shape] : parts_.optimizer.state_shapes(matrix.shape)) {
        matrix.state.emplace_back(kind, at::Tensor());
        state += c10::multiply_integers(shape);
      }
    }
    round.matrices.push_back(std::move(matrix));
  }
  // One block of memory per round.
  at::Tensor block;
  if (parts_.state_on_host && state > 0) {
    HostThreads threads(1, allowed_cores());
    block = host_zeros_beside(parts_.device, state, at::kFloat, parts_.pin_memory, threads);
  } else {
    block = at::zeros({state}, at::TensorOptions(at::kFloat).device(parts_.device));
  }
  int64_t used = 0;
  for (Matrix& matrix : round.matrices) {
    const auto shapes = parts_.optimizer.state_shapes(matrix.shape);
    for (size_t i = 0; i < matrix.state.size(); ++i) {
      const int64_t numel = c10::multiply_integers(shapes[i].second);
      matrix.state[i].second = block.narrow(0, used, numel).view(shapes[i].second);
      used += numel;
    }
  }
}

std::vector<MatrixState> MatrixExchange::states() const {
  std::vector<MatrixState> states;
  for (const Round& round : rounds_) {
    for (const Matrix& matrix : round.matrices) {
      for (const auto& [kind, value] : matrix.state) {
        states.push_back(
            {matrix.owned.unit, matrix.owned.entry, kind, value.sizes().vec(), value.view({-1})});
      }
    }
  }
  return states;
}

int64_t MatrixExchange::state_bytes() const {
  int64_t sum = 0;
  for (const MatrixState& state : states()) sum += static_cast<int64_t>(state.value.nbytes());
  return sum;
}

int64_t MatrixExchange::buffer_bytes() const {
  int64_t sum = 0;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined()) sum += static_cast<int64_t>(tensor.nbytes());
  };
  for (const at::Tensor& updates : updates_) add(updates);
  for (size_t half = 0; half < 2; ++half) {
    add(gathered_[half]);
    add(gathered_masters_[half]);
    add(outgoing_[half]);
  }
  for (const at::Tensor& buffer :
       {slices_, updates_of_slices_, master_slices_, gradient_, parameter_}) {
    add(buffer);
  }
  return sum;
}

}  // namespace tessera
