// SPDX-License-Identifier: MIT
#include "backends/offload/streamed_step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "lib/core/trace.h"
#include "tessera/core/phase_clock.h"

namespace tessera {
namespace {

template <typename Fn>
void for_pieces(const std::vector<Piece>& pieces, const FlatRange& range, const Fn& fn) {
  for (const Piece& piece : pieces) {
    const FlatRange common = overlap(piece.range, range);
    if (common.numel > 0) fn(piece, common);
  }
}

void start_copy(const at::Tensor& to, const at::Tensor& from) {
  at::Tensor(to).copy_(from, /*non_blocking=*/true);
}

}  // namespace

// Whether the piece's parameter streams with its chunk.
bool StreamedStep::streams(const Unit& unit, const Piece& piece) const {
  return unit.master.defined() || piece.target_on_host;
}

std::vector<at::Tensor> StreamedStep::state_of(const Chunk& chunk) const {
  const KeptPieces& kept = kept_of(chunk);
  return kept.state_of(formats(kept.small), chunk.range);
}

std::vector<at::Tensor> StreamedStep::state_in(const Slot& slot, const Chunk& chunk,
                                               const FlatRange& part) const {
  const bool small = kept_of(chunk).small;
  const FlatRange in_chunk{part.offset - chunk.range.offset, part.numel};
  std::vector<at::Tensor> parts;
  for (const at::Tensor& state : slot.state[small ? 1 : 0]) {
    parts.push_back(slice_of(state, blocks_of(formats(small)[parts.size()], in_chunk)));
  }
  return parts;
}

void StreamedStep::start() {
  const int64_t block = optimizer_->state_rules().block;  // chunks start with one
  const int64_t most = (config_.offload.chunk_numel + block - 1) / block * block;
  load_stream_ = side_stream(context_.device);
  update_stream_ = side_stream(context_.device);
  store_stream_ = side_stream(context_.device);
  progress_.resize(units_.size());
  bool masters = false, low_precision = false;
  int64_t largest = 0;                       // chunk
  std::array<int64_t, 2> largest_kept = {};  // of other and of small parameters
  for (size_t u = 0; u < units_.size(); ++u) {
    for (size_t k = 0; k < units_[u].kept.size(); ++k) {
      const auto& [range, small, state] = units_[u].kept[k];
      for (int64_t done = 0; done < range.numel; done += most) {
        const int64_t numel = std::min(most, range.numel - done);
        const bool last = range.offset + done + numel == units_[u].whole.numel;
        chunks_.push_back({u, {range.offset + done, numel}, k, last});
        largest = std::max(largest, numel);
        largest_kept[small ? 1 : 0] = std::max(largest_kept[small ? 1 : 0], numel);
      }
    }
    for (const Piece& piece : units_[u].pieces) {
      masters = masters || streams(units_[u], piece);
      low_precision = low_precision || (is_16_bit() && piece.target_on_host);
    }
  }
  const auto options = at::TensorOptions().dtype(at::kFloat).device(context_.device);
  for (Slot& slot : slots_) {
    if (masters) slot.master = at::empty({largest}, options);
    if (low_precision) {
      slot.low_precision = at::empty({largest}, options.dtype(context_.parameter_dtype));
    }
    for (const bool small : {false, true}) {
      const int64_t numel = largest_kept[small ? 1 : 0];
      for (const StateFormat& format : formats(small)) {
        slot.state[small ? 1 : 0].push_back(
            at::empty({format.numel(numel)}, options.dtype(format.dtype)));
      }
    }
  }
}

StreamedStep::~StreamedStep() { stored_.synchronize(); }

void StreamedStep::step(const StepScalars& scalars) {
  const TraceRange range("offload step");
  at::NoGradGuard no_grad;
  for (size_t unit = 0; unit < units_.size(); ++unit) complete(unit);
  ++steps_;
  Marker begin;
  begin.record(context_.device);
  begin.block(*update_stream_);
  stored_.block(*load_stream_);
  {
    const StreamScope scope(*update_stream_);
    step_timer_[half()].start(*update_stream_);
    optimizer_->begin_step(scalars);
  }
  for (size_t c = 0; c < chunks_.size(); ++c) {
    Chunk& chunk = chunks_[c];
    Slot& slot = slots_[c % slots_.size()];
    load(chunk, slot);
    update(chunk, slot);
    store(chunk, slot);
    if (!chunk.last) continue;
    Progress& progress = progress_[chunk.unit];
    const bool comes_back =
        std::any_of(units_[chunk.unit].pieces.begin(), units_[chunk.unit].pieces.end(),
                    [](const Piece& piece) { return piece.target_on_host; });
    progress.ready.record(comes_back ? *store_stream_ : *update_stream_);
    progress.pending = true;
  }
  step_timer_[half()].stop(*update_stream_);
  stored_.record(*store_stream_);
}

void StreamedStep::load(Chunk& chunk, Slot& slot) {
  slot.stored.block(*load_stream_);
  const StreamScope scope(*load_stream_);
  const CopyScope copies(*load_stream_);
  chunk.load[half()].start(*load_stream_);
  const Unit& unit = units_[chunk.unit];
  const FlatRange in_slot{0, chunk.range.numel};
  if (unit.master.defined()) {
    start_copy(slice_of(slot.master, in_slot), slice_of(unit.master, chunk.range));
  } else {
    for_pieces(unit.pieces, chunk.range, [&](const Piece& piece, const FlatRange& common) {
      if (!piece.target_on_host) return;
      start_copy(slice_of(slot.master, common, chunk.range.offset),
                 slice_of(piece.target, common, piece.range.offset));
    });
  }
  const std::vector<at::Tensor> here = state_of(chunk), there = state_in(slot, chunk, chunk.range);
  for (size_t i = 0; i < here.size(); ++i) start_copy(there[i], here[i]);
  chunk.load[half()].stop(*load_stream_);
  slot.loaded.record(*load_stream_);
}

void StreamedStep::update(const Chunk& chunk, const Slot& slot) {
  slot.loaded.block(*update_stream_);
  const StreamScope scope(*update_stream_);
  const Unit& unit = units_[chunk.unit];
  std::vector<ExternalRange> ranges;
  for_pieces(unit.pieces, chunk.range, [&](const Piece& piece, const FlatRange& common) {
    ExternalRange update;
    const at::Tensor target = slice_of(piece.target, common, piece.range.offset);
    update.range.parameter =
        streams(unit, piece) ? slice_of(slot.master, common, chunk.range.offset) : target;
    update.range.gradient = slice_of(piece.gradient, common, piece.range.offset);
    if (is_16_bit()) {
      update.range.low_precision =
          piece.target_on_host ? slice_of(slot.low_precision, common, chunk.range.offset) : target;
    }
    update.range.weight_decay = piece.weight_decay;
    update.range.small = piece.small;
    update.range.rule = piece.rule;
    update.range.placed = context_.units[chunk.unit].placed;
    update.range.begin = piece.begin + common.offset - piece.range.offset;
    update.state = state_in(slot, chunk, common);
    ranges.push_back(std::move(update));
  });
  optimizer_->update(ranges);
  // Also after a skipped step: the slot holds no 16-bit values of this chunk yet.
  if (slot.low_precision.defined()) {
    const FlatRange in_slot{0, chunk.range.numel};
    slice_of(slot.low_precision, in_slot).copy_(slice_of(slot.master, in_slot));
  }
}

void StreamedStep::store(Chunk& chunk, Slot& slot) {
  slot.updated.record(*update_stream_);
  slot.updated.block(*store_stream_);
  const StreamScope scope(*store_stream_);
  const CopyScope copies(*store_stream_);
  chunk.store[half()].start(*store_stream_);
  const Unit& unit = units_[chunk.unit];
  const FlatRange in_slot{0, chunk.range.numel};
  if (unit.master.defined()) {
    start_copy(slice_of(unit.master, chunk.range), slice_of(slot.master, in_slot));
  }
  for_pieces(unit.pieces, chunk.range, [&](const Piece& piece, const FlatRange& common) {
    if (!piece.target_on_host) return;
    start_copy(
        slice_of(piece.target, common, piece.range.offset),
        slice_of(is_16_bit() ? slot.low_precision : slot.master, common, chunk.range.offset));
  });
  const std::vector<at::Tensor> here = state_of(chunk), there = state_in(slot, chunk, chunk.range);
  for (size_t i = 0; i < here.size(); ++i) start_copy(here[i], there[i]);
  chunk.store[half()].stop(*store_stream_);
  slot.stored.record(*store_stream_);
}

void StreamedStep::complete(size_t unit) {
  Progress& progress = progress_[unit];
  if (!progress.pending) return;
  progress.pending = false;
  const PhaseScope phase(Phase::kOptimizer);
  StreamTimer& stall = progress.stall[half()];
  stall.start(current_stream(context_.device));
  progress.ready.block(context_.device);
  stall.stop(current_stream(context_.device));
  parameters_->publish(unit);
}

MasterValues StreamedStep::master(size_t unit, size_t segment) const {
  stored_.synchronize();
  return HostOptimizerState::master(unit, segment);
}

std::vector<KeptTensor> StreamedStep::state(size_t unit, size_t segment,
                                            const FlatRange& part) const {
  stored_.synchronize();
  return HostOptimizerState::state(unit, segment, part);
}

at::Tensor StreamedStep::step_count() const {
  Marker counted;
  counted.record(*update_stream_);
  counted.synchronize();
  return HostOptimizerState::step_count();
}

void StreamedStep::add_memory(StrategyMemory& memory) const {
  HostOptimizerState::add_memory(memory);
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined()) memory.buffer_bytes += static_cast<int64_t>(tensor.nbytes());
  };
  for (const Slot& slot : slots_) {
    add(slot.master);
    add(slot.low_precision);
    for (const auto& of_kind : slot.state) {
      for (const at::Tensor& state : of_kind) add(state);
    }
  }
}

int64_t StreamedStep::bytes_of_copies(const Chunk& chunk, bool to_device) const {
  const Unit& unit = units_[chunk.unit];
  int64_t bytes = unit.master.defined() ? 4 * chunk.range.numel : 0;
  for (const at::Tensor& state : state_of(chunk)) bytes += static_cast<int64_t>(state.nbytes());
  for_pieces(unit.pieces, chunk.range, [&](const Piece& piece, const FlatRange& common) {
    if (!piece.target_on_host || (to_device && unit.master.defined())) return;
    bytes += common.numel * static_cast<int64_t>(piece.target.element_size());
  });
  return bytes;
}

OffloadReport StreamedStep::report() {
  const bool under_way = std::any_of(progress_.begin(), progress_.end(),
                                     [](const Progress& progress) { return progress.pending; });
  if (under_way && steps_ == 1) {
    for (size_t unit = 0; unit < units_.size(); ++unit) complete(unit);
  }
  const size_t step = under_way && steps_ > 1 ? 1 - half() : half();
  OffloadReport report;
  double load_s = 0, store_s = 0, stall_s = 0;
  for (const Chunk& chunk : chunks_) {
    report.bytes_to_device += bytes_of_copies(chunk, /*to_device=*/true);
    report.bytes_to_host += bytes_of_copies(chunk, /*to_device=*/false);
    load_s += chunk.load[step].seconds();
    store_s += chunk.store[step].seconds();
  }
  for (const Progress& progress : progress_) stall_s += progress.stall[step].seconds();
  const auto rate = [](int64_t bytes, double s) { return s > 0 ? double(bytes) / s : 0; };
  report.to_device_bytes_per_s = rate(report.bytes_to_device, load_s);
  report.to_host_bytes_per_s = rate(report.bytes_to_host, store_s);
  report.step_s = step_timer_[step].seconds();
  report.hidden = report.step_s > 0 ? std::clamp(1 - stall_s / report.step_s, 0.0, 1.0) : 0;
  return report;
}

}  // namespace tessera
