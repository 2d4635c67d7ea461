// SPDX-License-Identifier: MIT
#include "tessera/core/phase_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <exception>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "lib/core/clock.h"
#include "lib/core/phase_points.h"
#include "tessera/core/device.h"

namespace tessera {
namespace {

constexpr int kNone = -1;

class HostPoints final : public PhasePoints {
 public:
  void clear() override { at_s_.clear(); }
  void mark() override { at_s_.push_back(now_s()); }
  double seconds(size_t from, size_t to) const override { return at_s_[to] - at_s_[from]; }

 private:
  std::vector<double> at_s_;
};

class StreamPoints final : public PhasePoints {
 public:
  // last_end: shared by the steps' points; the end of the last step.
  StreamPoints(at::Device device, std::shared_ptr<std::optional<c10::Event>> last_end)
      : device_(device), last_end_(std::move(last_end)) {}
  void clear() override {
    stream_ = current_stream(device_);
    used_ = 0;
  }
  bool concern_this_thread() const override { return current_stream(device_) == stream_; }
  void mark() override {
    if (used_ == events_.size()) events_.push_back(make_event());
    events_[used_++].record(*stream_);
  }
  void wait() const override { events_[used_ - 1].synchronize(); }
  double seconds(size_t from, size_t to) const override {
    return events_[from].elapsedTime(events_[to]) / 1e3;
  }
  std::optional<double> since_last_end() override {
    c10::Event& end = events_[used_ - 1];
    std::optional<double> seconds;
    if (*last_end_) {
      seconds = (*last_end_)->elapsedTime(end) / 1e3;
    } else {
      *last_end_ = make_event();
    }
    std::swap(**last_end_, end);
    return seconds;
  }
  void begin_anew() override { last_end_->reset(); }
  const c10::Event* last_end() const override { return *last_end_ ? &**last_end_ : nullptr; }
  const c10::Event* event(size_t point) const override { return &events_[point]; }

 private:
  c10::Event make_event() const { return {device_.type(), c10::EventFlag::BACKEND_DEFAULT}; }

  const at::Device device_;
  const std::shared_ptr<std::optional<c10::Event>> last_end_;
  std::optional<c10::Stream> stream_;
  std::vector<c10::Event> events_;
  size_t used_ = 0;
};

std::function<std::unique_ptr<PhasePoints>()> points_of(at::Device device) {
  if (device.is_cpu()) return [] { return std::make_unique<HostPoints>(); };
  return [device, last_end = std::make_shared<std::optional<c10::Event>>()] {
    return std::make_unique<StreamPoints>(device, last_end);
  };
}

std::shared_ptr<PhaseClock::State>& clock_of_thread() {
  thread_local std::shared_ptr<PhaseClock::State> clock;
  return clock;
}

// Clocks by device, for threads that work on behalf of a step's thread.
struct DeviceClocks {
  std::mutex mutex;
  std::map<c10::DeviceIndex, std::shared_ptr<PhaseClock::State>> clocks;

  std::shared_ptr<PhaseClock::State> of(at::Device device) {
    const std::lock_guard lock(mutex);
    const auto found = clocks.find(device.index());
    return found == clocks.end() ? nullptr : found->second;
  }
};

DeviceClocks& device_clocks() {
  static DeviceClocks clocks;
  return clocks;
}

}  // namespace

struct CopyScope::Copy {
  explicit Copy(c10::DeviceType type)
      : begin(type, c10::EventFlag::BACKEND_DEFAULT), end(type, c10::EventFlag::BACKEND_DEFAULT) {}
  c10::Event begin, end;
};

struct PhaseClock::State {
  struct Step {
    std::unique_ptr<PhasePoints> points;
    std::vector<int> phases;  // the phase that begins at each point
    bool ended = false, lost = false;
  };
  using Copies = std::vector<std::unique_ptr<CopyScope::Copy>>;

  std::optional<at::Device> gpu;
  std::array<Step, 2> steps;
  size_t half = 0;
  int phase = kNone;
  bool in_step = false;
  std::mutex copies_mutex;
  Copies copies_under_way, copies_over;

  Step& step() { return steps[half]; }

  // Also called in destructors. Device errors surface at the next call that issues work.
  void mark(int behind) {
    phase = behind;
    if (step().lost) return;
    try {
      step().points->mark();
      step().phases.push_back(behind);
    } catch (const std::exception&) {
      step().lost = true;
    }
  }

  void begin_copy(std::unique_ptr<CopyScope::Copy>& copy, c10::Stream stream) {
    {
      const std::lock_guard lock(copies_mutex);
      if (!copies_over.empty()) {
        copy = std::move(copies_over.back());
        copies_over.pop_back();
      }
    }
    if (copy == nullptr) copy = std::make_unique<CopyScope::Copy>(stream.device_type());
    copy->begin.record(stream);
  }

  void end_copy(std::unique_ptr<CopyScope::Copy> copy, c10::Stream stream) {
    copy->end.record(stream);
    const std::lock_guard lock(copies_mutex);
    copies_under_way.push_back(std::move(copy));
  }

  // Seconds of copies that ended between the two events; drops earlier ones.
  double take_copies(const c10::Event& first, const c10::Event& last) {
    const std::lock_guard lock(copies_mutex);
    double sum = 0;
    Copies later;
    for (auto& copy : copies_under_way) {
      if (!copy->end.query() || last.elapsedTime(copy->end) > 0) {
        later.push_back(std::move(copy));
        continue;
      }
      if (first.elapsedTime(copy->end) >= 0) sum += copy->begin.elapsedTime(copy->end) / 1e3;
      copies_over.push_back(std::move(copy));
    }
    copies_under_way = std::move(later);
    return sum;
  }
};

PhaseClock::PhaseClock(at::Device device) : PhaseClock(points_of(device)) {
  if (device.is_cpu()) return;
  state_->gpu = device;
  const std::lock_guard lock(device_clocks().mutex);
  device_clocks().clocks[device.index()] = state_;
}

PhaseClock::PhaseClock(const std::function<std::unique_ptr<PhasePoints>()>& make)
    : state_(std::make_shared<State>()) {
  for (State::Step& step : state_->steps) step.points = make();
}

PhaseClock::~PhaseClock() {
  if (clock_of_thread() == state_) clock_of_thread().reset();
  if (!state_->gpu) return;
  const std::lock_guard lock(device_clocks().mutex);
  std::erase_if(device_clocks().clocks, [&](const auto& entry) { return entry.second == state_; });
}

void PhaseClock::begin_anew() {
  for (State::Step& step : state_->steps) step.points->begin_anew();
}

void PhaseClock::begin_step() {
  State& state = *state_;
  if (!state.in_step) state.half = 1 - state.half;
  State::Step& step = state.step();
  step.points->clear();
  step.phases.clear();
  step.ended = step.lost = false;
  state.in_step = true;
  state.mark(kNone);
  clock_of_thread() = state_;
}

void PhaseClock::end_step() {
  state_->mark(kNone);
  state_->step().ended = true;
  state_->in_step = false;
  clock_of_thread().reset();
}

void PhaseClock::drop_step() {
  state_->half = 1 - state_->half;
  state_->in_step = false;
  clock_of_thread().reset();
}

std::optional<PhaseTimes> PhaseClock::read() {
  State& state = *state_;
  State::Step& step = state.in_step ? state.steps[1 - state.half] : state.step();
  if (!std::exchange(step.ended, false) || step.lost) return {};
  PhasePoints& points = *step.points;
  points.wait();
  std::array<double, 4> seconds{};
  const size_t last = step.phases.size() - 1;
  for (size_t i = 0; i < last; ++i) {
    if (step.phases[i] == kNone) continue;
    seconds[static_cast<size_t>(step.phases[i])] += points.seconds(i, i + 1);
  }
  const auto [forward, backward, communication, optimizer] = seconds;
  PhaseTimes times{.forward_s = forward,
                   .backward_s = backward,
                   .communication_s = communication,
                   .optimizer_s = optimizer,
                   .step_s = points.seconds(0, last)};
  if (points.event(0) != nullptr) {
    const c10::Event* from = points.last_end();
    times.copies_s = state.take_copies(from ? *from : *points.event(0), *points.event(last));
  }
  times.since_last_end_s = points.since_last_end();
  return times;
}

PhaseScope::PhaseScope(Phase phase) : clock_(clock_of_thread().get()) {
  // LibTorch runs backward on a GPU in its own thread while the step's thread waits.
  if (clock_ == nullptr && torch::autograd::get_current_node() != nullptr && gpu_count() > 0) {
    clock_ = device_clocks().of(c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice()).get();
    if (clock_ != nullptr && !clock_->in_step) clock_ = nullptr;
  }
  if (clock_ == nullptr) return;
  const int next = static_cast<int>(phase);
  outer_ = clock_->phase;
  if (next == outer_ || !clock_->step().points->concern_this_thread()) {
    clock_ = nullptr;
  } else {
    clock_->mark(next);
  }
}

PhaseScope::~PhaseScope() {
  if (clock_ != nullptr) clock_->mark(outer_);
}

CopyScope::CopyScope(c10::Stream stream) : stream_(stream) {
  if (!stream.device().is_cuda()) return;
  clock_ = device_clocks().of(stream.device());
  if (clock_ != nullptr) clock_->begin_copy(copy_, stream);
}

CopyScope::~CopyScope() {
  if (copy_ == nullptr || std::uncaught_exceptions() > 0) return;
  try {
    clock_->end_copy(std::move(copy_), stream_);
  } catch (const std::exception&) {  // the error surfaces at the next call that issues work
  }
}

}  // namespace tessera
