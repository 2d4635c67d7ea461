// SPDX-License-Identifier: MIT
#include "backends/common/matrix_exchange.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include "lib/comm/operation_scope.h"
#include "lib/core/trace.h"
#include "lib/optim/matrix_updates.h"
#include "tessera/comm/communication_ledger.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {
namespace {

struct Message {
  bool sends = false;
  at::Tensor tensor;
  int peer = 0;
};

Work transfer(Communicator& comm, const std::vector<Message>& messages) {
  if (messages.empty()) return {};
  Group group(comm);
  for (const Message& message : messages) {
    if (message.sends) {
      comm.send(message.tensor, message.peer);
    } else {
      comm.recv(message.tensor, message.peer);
    }
  }
  return group.end();
}

}  // namespace

at::Tensor MatrixExchange::update(size_t unit, size_t segment) const {
  return slice_of(updates_[unit], parts_.units[unit].layout.compact(segment));
}

at::Tensor MatrixExchange::piece_of(const Matrix& matrix, const MatrixPiece& piece,
                                    const Owned& of) const {
  const FlatLayout& layout = parts_.units[matrix.owned.unit].layout;
  return slice_of(of(matrix.owned.unit, piece.segment), piece.range,
                  layout.owned(piece.segment, shard_).offset)
      .to(parts_.device);
}

at::Tensor MatrixExchange::slice_of_matrix(const Matrix& matrix, const at::Tensor& buffer,
                                           const Owned& of) const {
  if (shards_ == 1) return piece_of(matrix, matrix.owned.pieces.front(), of);
  return buffer.narrow(0, matrix.owned.place, c10::multiply_integers(matrix.local));
}

MatrixExchange::Owned MatrixExchange::places() const {
  return [this](size_t unit, size_t segment) { return update(unit, segment); };
}

void MatrixExchange::run(const StepScalars& scalars, const Owned& gradients, const Owned& masters) {
  const TraceRange range("whole matrices");
  const ForTensor of("whole matrices");
  const DataDecides the(scalars.skip.defined() ? DecidedByData::kWhether : DecidedByData::kNothing);
  // The host reads skip once a step: skipping on the device costs a quarter of the step's memory
  // traffic. It is equal on all ranks.
  const bool tells = scalars.skip.defined() && !scalars.skip.is_meta();
  if (tells && scalars.skip.item<float>() != 0) {
    for (const at::Tensor& update : updates_) {
      if (update.defined()) update.zero_();
    }
    return;
  }
  step_count_.add_(1);
  const bool reads = parts_.optimizer.reads_parameter();
  std::array<std::array<Work, 2>, 2> gathers;
  const auto start = [&](size_t round) {
    if (round >= rounds_.size()) return;
    const size_t half = round % 2;
    gathers[half][0] = move_pieces(rounds_[round], gathered_[half], gradients, Way::kToOwner);
    if (!reads) return;
    gathers[half][1] = move_pieces(rounds_[round], gathered_masters_[half], masters, Way::kToOwner);
  };
  Work back;
  std::vector<Work> told;
  const auto end = [&](size_t round) {
    back.wait();
    told.push_back(tell_groups(rounds_[round]));
    if (!parts_.overlap) told.back().wait();
  };
  start(0);
  for (size_t round = 0; round < rounds_.size(); ++round) {
    const size_t half = round % 2;
    if (parts_.overlap) start(round + 1);
    for (Work& work : gathers[half]) work.wait();
    compute(rounds_[round], half, scalars, gradients, masters);
    if (round > 0) end(round - 1);
    back = move_pieces(rounds_[round], outgoing_[half], places(), Way::kBack);
    if (!parts_.overlap) {
      back.wait();
      start(round + 1);
    }
  }
  if (!rounds_.empty()) end(rounds_.size() - 1);
  for (Work& work : told) work.wait();
}

Work MatrixExchange::move_pieces(const Round& round, const at::Tensor& buffer, const Owned& of,
                                 Way way) const {
  if (shards_ == 1) return {};  // the owner updates its own memory
  const bool to_owner = way == Way::kToOwner;
  std::vector<Message> messages;
  for (const Matrix& matrix : round.matrices) {
    if (!in_my_group(matrix)) continue;
    for (const MatrixPiece& piece : matrix.owned.pieces) {
      const bool owns = matrix.owned.shard == shard_, holds = piece.shard == shard_;
      if (!owns && !holds) continue;
      at::Tensor held, owned;
      if (holds) held = piece_of(matrix, piece, of);
      if (owns) owned = buffer.narrow(0, matrix.owned.place + piece.in_matrix, piece.range.numel);
      if (owns && holds) {
        to_owner ? owned.copy_(held) : held.copy_(owned);
      } else if (owns) {
        messages.push_back({!to_owner, owned, piece.shard});
      } else {
        messages.push_back({to_owner, held, matrix.owned.shard});
      }
    }
  }
  return transfer(*parts_.ranks.shards, messages);
}

void MatrixExchange::move_slices(const Round& round, const at::Tensor& buffer, const Owned& of,
                                 const at::Tensor& slices, Way way) const {
  const bool to_owner = way == Way::kToOwner;
  std::vector<Message> messages;
  for (const Matrix& matrix : round.matrices) {
    if (!matrix.here) continue;
    const at::Tensor slice = slice_of_matrix(matrix, buffer, of);
    if (!matrix.mine) {
      messages.push_back({to_owner, slice, matrix.owned.slice});
      continue;
    }
    for (int rank = 0; rank < round.cut->size(); ++rank) {
      const at::Tensor place =
          slices.narrow(0, matrix.owned.slices_place + rank * slice.numel(), slice.numel());
      if (rank == matrix.owned.slice) {
        to_owner ? place.copy_(slice) : slice.copy_(place);
      } else {
        messages.push_back({!to_owner, place, rank});
      }
    }
  }
  transfer(*round.cut, messages).wait();
}

at::Tensor MatrixExchange::whole(const Matrix& matrix, const at::Tensor& buffer, const Owned& of,
                                 const at::Tensor& slices) const {
  if (matrix.placement.cut == nullptr) {
    return slice_of_matrix(matrix, buffer, of).view(matrix.local);
  }
  const int64_t numel = c10::multiply_integers(matrix.local);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < matrix.placement.cut->size(); ++rank) {
    parts.push_back(
        slices.narrow(0, matrix.owned.slices_place + rank * numel, numel).view(matrix.local));
  }
  return join_parts(parts, matrix.placement.shard);
}

void MatrixExchange::compute(Round& round, size_t half, const StepScalars& scalars,
                             const Owned& gradients, const Owned& masters) {
  const bool reads = parts_.optimizer.reads_parameter();
  if (round.cut != nullptr) {
    move_slices(round, gathered_[half], gradients, slices_, Way::kToOwner);
    if (reads) {
      move_slices(round, gathered_masters_[half], masters, master_slices_, Way::kToOwner);
    }
  }
  for (Matrix& matrix : round.matrices) {
    if (!matrix.mine) continue;
    const auto in = [&](const at::Tensor& buffer) {
      return buffer.narrow(0, 0, c10::multiply_integers(matrix.shape)).view(matrix.shape);
    };
    const at::Tensor gradient = in(gradient_);
    gradient.copy_(whole(matrix, gathered_[half], gradients, slices_));
    if (scalars.gradient_scale.defined()) gradient.mul_(scalars.gradient_scale);
    at::Tensor parameter;
    if (reads) {
      parameter = in(parameter_);
      parameter.copy_(whole(matrix, gathered_masters_[half], masters, master_slices_));
    }
    const at::Tensor update = update_of(matrix, gradient, parameter);
    if (round.cut == nullptr) {
      slice_of_matrix(matrix, outgoing_[half], places()).view(matrix.local).copy_(update);
      continue;
    }
    const int64_t numel = c10::multiply_integers(matrix.local);
    for (int rank = 0; rank < round.cut->size(); ++rank) {
      const at::Tensor place =
          updates_of_slices_.narrow(0, matrix.owned.slices_place + rank * numel, numel);
      place.zero_();  // padding of a slice
      copy_part(update, matrix.placement.shard, rank, place.view(matrix.local));
    }
  }
  if (round.cut != nullptr) {
    move_slices(round, outgoing_[half], places(), updates_of_slices_, Way::kBack);
  }
}

at::Tensor MatrixExchange::update_of(Matrix& matrix, const at::Tensor& gradient,
                                     const at::Tensor& parameter) const {
  NamedTensors state = matrix.state;
  if (parts_.state_on_host) {
    for (auto& [kind, tensor] : state) {
      tensor = tensor.to(parts_.device, /*non_blocking=*/true, /*copy=*/true);
    }
  }
  const at::Tensor update = parts_.optimizer.update(
      {matrix.name, gradient, parameter, step_count_.to(at::kFloat)}, state);
  check_update(parts_.optimizer, matrix.shape, update, state);
  for (size_t i = 0; i < state.size(); ++i) {
    const at::Tensor &kept = matrix.state[i].second, &becomes = state[i].second;
    if (!kept.is_same(becomes)) kept.copy_(becomes, /*non_blocking=*/true);
  }
  return update;
}

// Every rank of shard_replicas has the same pieces.
Work MatrixExchange::tell_groups(const Round& round) const {
  Communicator* groups = parts_.ranks.shard_replicas;
  if (groups == nullptr || groups->size() == 1) return {};
  std::vector<std::pair<at::Tensor, int>> told;
  for (const Matrix& matrix : round.matrices) {
    for (const MatrixPiece& piece : matrix.owned.pieces) {
      if (piece.shard != shard_) continue;
      told.emplace_back(piece_of(matrix, piece, places()), matrix.owned.group);
    }
  }
  if (told.empty()) return {};
  Group group(*groups);
  for (const auto& [tensor, owner] : told) groups->broadcast(tensor, owner);
  return group.end();
}

}  // namespace tessera
