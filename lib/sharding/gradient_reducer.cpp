// SPDX-License-Identifier: MIT
#include "tessera/sharding/gradient_reducer.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/core/meta.h"
#include "lib/sharding/bytes.h"
#include "tessera/core/device.h"
#include "tessera/core/phase_clock.h"

namespace tessera {

void Reduction::Placing::run() const {
  if (!add) {
    at::Tensor(to).copy_(from);
    return;
  }
  // On the CPU a dtype conversion needs temporary memory: convert few elements at a time.
  const bool whole = runs_on_gpu(to) || to.scalar_type() == from.scalar_type();
  const int64_t most = whole ? std::max<int64_t>(1, to.numel()) : 4096;
  for (int64_t first = 0; first < to.numel(); first += most) {
    const int64_t count = std::min(most, to.numel() - first);
    to.narrow(0, first, count).add_(from.narrow(0, first, count));
  }
}

void Reduction::wait() {
  work_.wait();
  for (const Placing& placing : placings_) placing.run();
  placings_.clear();
  if (wire_ != nullptr) std::exchange(wire_, nullptr)->settle_until(last_piece_);
}

GradientReducer::GradientReducer(at::Device device, at::ScalarType gradient, at::ScalarType reduce,
                                 int64_t piece_bytes, int64_t largest)
    : stream_(side_stream(device)) {
  if (gradient == reduce) return;
  const auto options = at::TensorOptions().dtype(reduce).device(device);
  for (Piece& piece : staging_) {
    piece.buffer = at::empty({piece_numel(reduce, piece_bytes, largest)}, options);
  }
}

int64_t GradientReducer::piece_numel(at::ScalarType reduce, int64_t piece_bytes, int64_t largest) {
  const int64_t most = piece_bytes / static_cast<int64_t>(c10::elementSize(reduce));
  return std::max<int64_t>(1, std::min(most, largest));
}

GradientReducer::~GradientReducer() = default;

Reduction GradientReducer::all_reduce(Communicator& comm, const std::vector<at::Tensor>& tensors) {
  if (converts()) {
    std::vector<Columns> columns;
    for (const at::Tensor& tensor : tensors) {
      columns.push_back({tensor.unsqueeze(0), {.to = tensor}});
    }
    return send(comm, /*scatter=*/false, columns);
  }
  Reduction reduction;
  Group group(comm);
  for (const at::Tensor& tensor : tensors) comm.all_reduce(tensor);
  reduction.work_ = group.end();
  return reduction;
}

Reduction GradientReducer::reduce_scatter(Communicator& comm, const std::vector<Part>& parts) {
  if (converts()) {
    std::vector<Columns> columns;
    for (const Part& part : parts) {
      columns.push_back(
          {part.full.view({comm.size(), -1}), {.to = part.own, .from = {}, .add = part.add}});
    }
    return send(comm, /*scatter=*/true, columns);
  }
  Reduction reduction;
  Group group(comm);
  for (const Part& part : parts) {
    if (!part.add) {
      comm.reduce_scatter(part.own, part.full);
      continue;
    }
    const at::Tensor sum = part.full.view({comm.size(), -1}).select(0, comm.rank());
    comm.reduce_scatter(sum, part.full);
    reduction.placings_.push_back({part.own, sum, /*add=*/true});
  }
  reduction.work_ = group.end();
  return reduction;
}

// Splits the columns into pieces that fit the staging buffers, small tensors together.
Reduction GradientReducer::send(Communicator& comm, bool scatter,
                                const std::vector<Columns>& columns) {
  const int64_t rows = scatter ? comm.size() : 1;
  const int64_t room = std::max<int64_t>(1, staging_.front().buffer.numel() / rows);
  if (room * rows > staging_.front().buffer.numel()) {  // more ranks than elements of a piece
    settle_until(pieces_);
    for (Piece& piece : staging_) piece.buffer = at::empty({rows}, piece.buffer.options());
  }
  Marker ready;
  ready.record(current_stream(comm.device()));
  ready.block(stream_);
  const StreamScope scope(stream_);
  std::vector<Columns> piece;
  int64_t filled = 0;
  for (const Columns& all : columns) {
    const int64_t width = all.from.size(1);
    for (int64_t first = 0; first < width;) {
      const int64_t count = std::min(room - filled, width - first);
      Columns part{all.from.narrow(1, first, count), all.placing};
      part.placing.to = all.placing.to.narrow(0, first, count);
      piece.push_back(std::move(part));
      first += count;
      filled += count;
      if (filled < room) continue;
      launch(comm, scatter, piece);
      piece.clear();
      filled = 0;
    }
  }
  if (filled > 0) launch(comm, scatter, piece);
  Reduction reduction;
  reduction.wire_ = this;
  reduction.last_piece_ = pieces_;
  return reduction;
}

void GradientReducer::launch(Communicator& comm, bool scatter,
                             const std::vector<Columns>& columns) {
  Piece& piece = staging_[pieces_ % staging_.size()];
  settle(piece);
  const int64_t rows = columns.front().from.size(0);
  int64_t width = 0;
  for (const Columns& part : columns) width += part.from.size(1);
  const at::Tensor flat = piece.buffer.narrow(0, 0, rows * width), all = flat.view({rows, width});
  const at::Tensor sum = all.select(0, scatter ? comm.rank() : 0);
  int64_t first = 0;
  for (const Columns& part : columns) {
    const int64_t count = part.from.size(1);
    all.narrow(1, first, count).copy_(part.from);
    piece.placings.push_back(part.placing);
    piece.placings.back().from = sum.narrow(0, first, count);
    first += count;
  }
  piece.work = scatter ? comm.reduce_scatter(sum, flat) : comm.all_reduce(flat);
  piece.number = ++pieces_;
}

void GradientReducer::settle(Piece& piece) {
  piece.work.wait();
  for (const auto& placing : piece.placings) placing.run();
  piece.placings.clear();
}

void GradientReducer::settle_until(uint64_t number) {
  {
    const StreamScope scope(stream_);
    Piece& newest = staging_[(pieces_ + 1) % staging_.size()];
    Piece& older = staging_[pieces_ % staging_.size()];
    for (Piece* piece : {&older, &newest}) {
      if (piece->number <= number) settle(*piece);
    }
  }
  Marker done;
  done.record(stream_);
  const PhaseScope phase(Phase::kCommunication);
  done.block(current_stream(stream_.device()));
}

int64_t GradientReducer::bytes() const {
  int64_t sum = 0;
  for (const Piece& piece : staging_) sum += bytes_of(piece.buffer);
  return sum;
}

}  // namespace tessera
