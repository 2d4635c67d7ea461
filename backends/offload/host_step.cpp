// SPDX-License-Identifier: MIT
#include "backends/offload/host_step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "lib/core/clock.h"
#include "lib/core/trace.h"
#include "tessera/core/error.h"
#include "tessera/core/phase_clock.h"

namespace tessera {
namespace {

at::Tensor part(const at::Tensor& whole, const FlatRange& range) {
  return whole.defined() ? slice_of(whole, range) : whole;
}

}  // namespace

// 16-bit values return through the buffer in which their gradient arrived.
std::vector<at::ScalarType> HostStep::staging_types(const Unit& unit) const {
  const at::ScalarType gradient = unit.pieces.front().gradient.scalar_type();
  const bool returns = std::any_of(unit.pieces.begin(), unit.pieces.end(),
                                   [](const Piece& piece) { return !piece.target_on_host; });
  if (is_16_bit() && returns && c10::elementSize(gradient) != 2) {
    return {gradient, context_.parameter_dtype};
  }
  return {gradient};
}

at::Tensor HostStep::low_precision(const Unit& unit) const {
  if (!is_16_bit()) return {};
  return unit.staging.back().element_size() == 2
             ? unit.staging.back().view(context_.parameter_dtype)
             : at::Tensor();
}

void HostStep::start() {
  to_host_ = side_stream(context_.device);
  to_device_ = side_stream(context_.device);
  traffic_.resize(units_.size());
  first_chunk_.push_back(0);
  left_ = std::make_unique<std::atomic<int64_t>[]>(units_.size());
  for (size_t u = 0; u < units_.size(); ++u) {
    Traffic& traffic = traffic_[u];
    traffic.first_chunk.push_back(0);
    for (const Piece& piece : units_[u].pieces) {
      traffic.bytes_to_host += static_cast<int64_t>(piece.gradient.nbytes());
      if (!piece.target_on_host) {
        traffic.bytes_to_device += static_cast<int64_t>(piece.target.nbytes());
      }
      traffic.first_chunk.push_back(traffic.first_chunk.back() +
                                    (piece.range.numel + kHostChunk - 1) / kHostChunk);
    }
    first_chunk_.push_back(first_chunk_.back() + traffic.first_chunk.back());
  }
  if (!context_.device.is_meta()) worker_ = std::thread([this] { work(); });
}

HostStep::~HostStep() {
  if (!worker_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
  for (const Traffic& traffic : traffic_) {  // so that no copy touches freed memory
    traffic.gradient.synchronize();
    traffic.parameters.synchronize();
  }
}

void HostStep::gradient_ready(size_t unit) {
  const TraceRange range("offload gradient");
  at::NoGradGuard no_grad;
  Traffic& traffic = traffic_[unit];
  Marker ready;
  ready.record(context_.device);
  ready.block(*to_host_);
  const StreamScope scope(*to_host_);
  const CopyScope copies(*to_host_);
  StreamTimer& timer = times_of(unit, steps_).to_host;
  timer.start(*to_host_);
  for (const Piece& piece : units_[unit].pieces) {
    slice_of(units_[unit].staging.front(), piece.range)
        .copy_(piece.gradient, /*non_blocking=*/true);
  }
  timer.stop(*to_host_);
  traffic.gradient.record(*to_host_);
  traffic.fresh = true;
}

void HostStep::gradients_reopened() {
  for (Traffic& traffic : traffic_) {
    traffic.gradient.block(context_.device);
    traffic.fresh = false;
  }
}

void HostStep::step(const StepScalars& scalars) {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    complete(unit);
    // A second step with the same gradient.
    if (!traffic_[unit].fresh && !units_[unit].pieces.empty()) gradient_ready(unit);
    traffic_[unit].fresh = false;
  }
  if (context_.device.is_meta()) return step_without_memory();
  const at::Tensor one = at::ones({}, scalars.learning_rate.options());
  const at::Tensor none = at::zeros({}, scalars.learning_rate.options());
  AsyncScalars values({scalars.learning_rate,
                       scalars.gradient_scale.defined() ? scalars.gradient_scale : one,
                       scalars.skip.defined() ? scalars.skip : none});
  if (units_.empty()) {  // nothing to update, but the step counts
    begin_step(values);
    return;
  }
  step_begin_.record(context_.device);
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    traffic_[unit].pending = !units_[unit].pieces.empty();
  }
  {
    std::unique_lock lock(mutex_);
    wait_for_worker(lock);  // units without pieces did not wait
    scalars_ = std::move(values);
    for (Traffic& traffic : traffic_) traffic.sent = false;
    ++steps_;
  }
  changed_.notify_all();
}

// Meta tensors: computes nothing and marks all as sent.
void HostStep::step_without_memory() {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    traffic_[unit].pending = !units_[unit].pieces.empty();
    traffic_[unit].sent = true;
  }
  ++steps_;
}

void HostStep::wait_for_worker(std::unique_lock<std::mutex>& lock) const {
  changed_.wait(lock, [&] { return !scalars_ || error_; });
  if (error_) std::rethrow_exception(error_);
}

at::Tensor HostStep::step_count() const {
  std::unique_lock lock(mutex_);
  wait_for_worker(lock);
  return HostOptimizerState::step_count();
}

void HostStep::complete(size_t unit) {
  Traffic& traffic = traffic_[unit];
  if (!traffic.pending) return;
  const TraceRange range("offload wait");
  const PhaseScope phase(Phase::kOptimizer);
  StreamTimer& stall = times_of(unit, steps_ - 1).stall;
  stall.start(current_stream(context_.device));
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return traffic.sent || error_; });
    if (error_) std::rethrow_exception(error_);
  }
  traffic.gradient.block(context_.device);
  traffic.parameters.block(context_.device);
  stall.stop(current_stream(context_.device));
  traffic.pending = false;
  parameters_->publish(unit);
}

void HostStep::work() {
  bind_this_thread(cores_);
  set_current_device(context_.device);
  at::NoGradGuard no_grad;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || scalars_; });
      if (!scalars_) return;
    }
    try {
      run_step();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      changed_.notify_all();
      return;
    }
  }
}

bool HostStep::begin_step(AsyncScalars& scalars) {
  const std::vector<double> values = scalars.read();
  const auto scalar = [](double value) { return at::full({}, value, at::kFloat); };
  optimizer_->begin_step({scalar(values[0]), scalar(values[1]), scalar(values[2])});
  return values[2] != 0;
}

void HostStep::run_step() {
  const bool skip = begin_step(*scalars_);  // staging then holds no new values
  const double begin = now_s();
  if (!skip) {
    step_begin_.block(*to_device_);
    update();
  }
  const double update_s = skip ? 0 : now_s() - begin;
  for (size_t unit = 0; skip && unit < units_.size(); ++unit) say_sent(unit);
  const std::lock_guard lock(mutex_);
  scalars_.reset();
  const auto slot = static_cast<size_t>((steps_ - 1) % 2);
  step_s_[slot] = now_s() - begin;
  update_s_[slot] = update_s;
  changed_.notify_all();
}

// Updates first the units that forward needs first, which backward finished last.
void HostStep::update() {
  const TraceRange range("offload update");
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    traffic_[unit].gradient.synchronize();
    left_[unit] = traffic_[unit].first_chunk.back();
    if (left_[unit] == 0) send(unit);  // none of it is on this rank
  }
  threads_.run(first_chunk_.back(), [&](int64_t chunk) {
    const auto after = std::upper_bound(first_chunk_.begin(), first_chunk_.end(), chunk);
    const auto unit = static_cast<size_t>(after - first_chunk_.begin()) - 1;
    update_chunk(unit, chunk - first_chunk_[unit]);
    if (--left_[unit] > 0) return;
    send(unit);
  });
}

void HostStep::say_sent(size_t unit) {
  const std::lock_guard lock(mutex_);
  traffic_[unit].sent = true;
  changed_.notify_all();
}

void HostStep::update_chunk(size_t index, int64_t chunk) {
  const auto& first_chunk = traffic_[index].first_chunk;
  const auto after = std::upper_bound(first_chunk.begin(), first_chunk.end(), chunk);
  const auto p = static_cast<size_t>(after - first_chunk.begin()) - 1;
  const Unit& unit = units_[index];
  const Piece& piece = unit.pieces[p];
  const int64_t first = (chunk - first_chunk[p]) * kHostChunk;
  const FlatRange in_piece{first, std::min(kHostChunk, piece.range.numel - first)};
  const FlatRange range{piece.range.offset + first, in_piece.numel};
  ExternalRange update;
  const at::Tensor target = slice_of(piece.target, in_piece);
  update.range.parameter = unit.master.defined() ? slice_of(unit.master, range) : target;
  update.range.gradient = slice_of(unit.staging.front(), range);
  if (is_16_bit()) {
    update.range.low_precision = piece.target_on_host ? target : part(low_precision(unit), range);
  }
  update.range.weight_decay = piece.weight_decay;
  update.range.small = piece.small;
  update.range.rule = piece.rule;
  update.range.placed = context_.units[index].placed;
  update.range.begin = piece.begin + first;
  update.state = unit.kept_at(range.offset).state_of(formats(piece.small), range);
  optimizer_->update({&update, 1});
  if (piece.target_on_host && !is_16_bit() && unit.master.defined()) {
    at::Tensor(target).copy_(update.range.parameter);
  }
}

void HostStep::send(size_t index) {
  at::NoGradGuard no_grad;
  set_current_device(context_.device);  // on any of the host's threads
  const Unit& unit = units_[index];
  Traffic& traffic = traffic_[index];
  const StreamScope scope(*to_device_);
  if (traffic.bytes_to_device > 0) {
    const CopyScope copies(*to_device_);
    StreamTimer& timer = times_of(index, steps_ - 1).to_device;
    timer.start(*to_device_);
    const at::Tensor source = is_16_bit() ? low_precision(unit) : unit.master;
    for (const Piece& piece : unit.pieces) {
      if (piece.target_on_host) continue;
      at::Tensor(piece.target).copy_(slice_of(source, piece.range), /*non_blocking=*/true);
    }
    timer.stop(*to_device_);
  }
  traffic.parameters.record(*to_device_);
  say_sent(index);
}

OffloadReport HostStep::report() {
  const bool under_way = std::any_of(traffic_.begin(), traffic_.end(),
                                     [](const Traffic& traffic) { return traffic.pending; });
  if (under_way && steps_ == 1) {
    for (size_t unit = 0; unit < units_.size(); ++unit) complete(unit);
  }
  const int64_t step = steps_ - (under_way && steps_ > 1 ? 2 : 1);
  OffloadReport report;
  if (step < 0) return report;
  double to_host_s = 0, to_device_s = 0, stall_s = 0;
  int64_t bytes_to_host = 0, bytes_to_device = 0, numel = 0;
  for (size_t u = 0; u < units_.size(); ++u) {
    const Times& times = times_of(u, step);
    to_host_s += times.to_host.seconds();
    to_device_s += times.to_device.seconds();
    stall_s += times.stall.seconds();
    bytes_to_host += traffic_[u].bytes_to_host;
    bytes_to_device += traffic_[u].bytes_to_device;
    numel += units_[u].whole.numel;
  }
  std::unique_lock lock(mutex_);
  if (step + 1 == steps_) wait_for_worker(lock);  // the worker reports its times after sending all
  const auto rate = [](double amount, double seconds) {
    return seconds > 0 ? amount / seconds : 0;
  };
  report.bytes_to_host = bytes_to_host;
  report.bytes_to_device = bytes_to_device;
  report.to_host_bytes_per_s = rate(double(bytes_to_host), to_host_s);
  report.to_device_bytes_per_s = rate(double(bytes_to_device), to_device_s);
  const auto slot = static_cast<size_t>(step % 2);
  report.update_elements_per_s = rate(double(numel), update_s_[slot]);
  report.step_s = step_s_[slot];
  report.hidden = report.step_s > 0 ? std::clamp(1 - stall_s / report.step_s, 0.0, 1.0) : 0;
  return report;
}

}  // namespace tessera
