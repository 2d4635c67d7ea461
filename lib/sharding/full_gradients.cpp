// SPDX-License-Identifier: MIT
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <utility>

#include "lib/comm/operation_scope.h"
#include "lib/sharding/two_part_tables.h"
#include "tessera/core/error.h"
#include "tessera/core/phase_clock.h"
#include "tessera/sharding/gradient_store.h"

namespace tessera {

void GradientStore::continue_step() {
  fail(ErrorCode::kInvalidArgument,
       "this store of gradients does not add up over several calls (GradientStore::continue_step)");
}

void GradientStore::complete_all() {
  fail(ErrorCode::kInvalidArgument,
       "this store of gradients takes no backward passes of forward() "
       "(GradientStore::complete_all)");
}

FullGradients::FullGradients(const std::vector<ParameterUnit>& units, Communicator& comm,
                             StoreOptions options)
    : units_(units),
      comm_(comm),
      options_(options),
      uses_left_(units.size()),
      begun_(units.size()),
      tables_(std::make_unique<TwoPartTables>(units, comm, options)) {
  const auto tensor_options = at::TensorOptions().dtype(options.dtype).device(comm.device());
  for (size_t u = 0; u < units_.size(); ++u) {
    const ParameterUnit& unit = units_[u];
    flats_.push_back(at::zeros({unit.frozen ? 0 : unit.layout.numel()}, tensor_options));
    buffers_.push_back(unit.frozen ? nullptr
                                   : std::make_unique<GradientBuffer>(unit, flats_.back()));
    parts_.emplace_back();
    if (unit.frozen) continue;
    const FlatLayout& layout = unit.layout;
    for (size_t segment = 0; segment < layout.segments().size() && layout.shards() > 1; ++segment) {
      parts_.back().push_back(
          {slice_of(flats_.back(), layout.segments()[segment]),
           slice_of(flats_.back(), layout.owned(segment, unit.ranks(comm).rank()))});
    }
    const std::vector<at::Tensor>& ranges = buffers_.back()->to_clear();
    to_clear_.insert(to_clear_.end(), ranges.begin(), ranges.end());
  }
}

FullGradients::~FullGradients() = default;

void FullGradients::begin_step() {
  cleared_ = false;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    uses_left_[unit] = units_[unit].uses;
    begun_[unit] = false;
  }
}

// The sum stays on its owner, or on the first rank if all own it: the next reduction over ranks
// adds new gradients to it.
void FullGradients::continue_step() {
  begin_step();
  cleared_ = true;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (buffers_[unit] == nullptr) continue;
    begun_[unit] = true;  // no gradient is lazily zero
    const FlatLayout& layout = units_[unit].layout;
    if (layout.shards() == 1) {
      if (units_[unit].ranks(comm_).rank() != 0) flats_[unit].zero_();
      continue;
    }
    for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
      const FlatRange whole = layout.segments()[segment];
      const FlatRange own = layout.owned(segment, units_[unit].ranks(comm_).rank());
      const int64_t end = own.offset + own.numel;
      slice_of(flats_[unit], {whole.offset, own.offset - whole.offset}).zero_();
      slice_of(flats_[unit], {end, whole.offset + whole.numel - end}).zero_();
    }
  }
}

// Not in begin_step(): an offloaded update may read the last step's gradient until forward has used
// the unit. Before the first backward forward has used all units, so one launch clears all
// gradients.
void FullGradients::before_backward(size_t unit) {
  if (!std::exchange(cleared_, true) && !to_clear_.empty()) at::_foreach_zero_(to_clear_);
  if (begun_[unit]) return;
  begun_[unit] = true;
  buffers_[unit]->begin_cleared();
}

void FullGradients::set_begun(bool begun) {
  cleared_ = begun;
  begun_.assign(units_.size(), begun);
}

void FullGradients::settle() {
  for (const auto& buffer : buffers_) {
    if (buffer != nullptr) buffer->complete();
  }
}

std::shared_ptr<DeferredEmbeddingRows> FullGradients::deferred_rows() const {
  return tables_->deferred_rows();
}

void FullGradients::after_backward(size_t unit, bool last_micro_batch) {
  if (!last_micro_batch) return;
  if (--uses_left_[unit] > 0) {
    if (!tables_->contains(unit)) return;
    buffers_[unit]->complete();
    pending_.push_back({reduce({unit}), {}});
    if (!options_.overlap) wait(pending_.back());
    tables_->open(unit, flats_[unit]);
  } else if (tables_->is_open(unit)) {
    tables_->close(unit);
  } else {
    complete(unit);
  }
}

void FullGradients::complete_all() {
  for (size_t unit = units_.size(); unit-- > 0;) {  // in the order of backward
    if (buffers_[unit] == nullptr || uses_left_[unit] <= 0) continue;
    before_backward(unit);
    uses_left_[unit] = 0;
    complete(unit);
  }
}

void FullGradients::complete(size_t unit) {
  buffers_[unit]->complete();
  bucket_.push_back(unit);
  bucket_bytes_ += static_cast<int64_t>(flats_[unit].nbytes());
  if (bucket_bytes_ >= options_.bucket_bytes) launch_bucket();
}

Reduction FullGradients::reduce(const std::vector<size_t>& units) const {
  const InPhase phase("reduce");
  const ForTensor of(units_[units.front()].name);  // the first of the bucket
  std::vector<at::Tensor> whole;
  std::vector<GradientReducer::Part> parts;
  for (size_t unit : units) {
    if (units_[unit].layout.shards() == 1) whole.push_back(flats_[unit]);
    parts.insert(parts.end(), parts_[unit].begin(), parts_[unit].end());
  }
  Communicator& ranks = units_[units.front()].ranks(comm_);
  return parts.empty() ? options_.wire->all_reduce(ranks, whole)
                       : options_.wire->reduce_scatter(ranks, parts);
}

void FullGradients::launch_bucket() {
  if (bucket_.empty()) return;
  // Units of other ranks have a reduction of their own.
  while (!bucket_.empty()) {
    const Communicator* const ranks = units_[bucket_.front()].holders;
    std::vector<size_t> together, others;
    for (const size_t unit : bucket_) {
      (units_[unit].holders == ranks ? together : others).push_back(unit);
    }
    pending_.push_back({reduce(together), together});
    bucket_ = std::move(others);
  }
  bucket_bytes_ = 0;
  // With a listener to reductions, a bucket is handed over once the next one is being reduced.
  const size_t ready = !options_.overlap      ? pending_.size()
                       : reports_reductions() ? pending_.size() - 1
                                              : 0;
  for (size_t i = 0; i < ready; ++i) wait(pending_[i]);
}

void FullGradients::wait(Bucket& bucket) {
  bucket.reduction.wait();
  for (size_t unit : bucket.units) reduced(unit);
  bucket.units.clear();
}

void FullGradients::finish() {
  launch_bucket();
  tables_->start();
  // On a stream all are one wait; on the CPU each is followed by work.
  std::optional<PhaseScope> phase;
  if (!comm_.device().is_cpu()) phase.emplace(Phase::kCommunication);
  for (auto& bucket : pending_) wait(bucket);
  pending_.clear();
  tables_->finish([this](size_t unit, size_t segment) { return owned(unit, segment); },
                  [this](size_t unit) { reduced(unit); });
}

void FullGradients::drop_step() {
  for (Bucket& bucket : pending_) bucket.reduction.wait();
  pending_.clear();
  tables_->drop();
  bucket_.clear();
  bucket_bytes_ = 0;
}

at::Tensor FullGradients::owned(size_t unit, size_t segment) const {
  return slice_of(flats_[unit],
                  units_[unit].layout.owned(segment, units_[unit].ranks(comm_).rank()));
}

int64_t FullGradients::persistent_bytes() const {
  int64_t sum = 0;
  for (const auto& flat : flats_) sum += static_cast<int64_t>(flat.nbytes());
  return sum;
}

}  // namespace tessera
