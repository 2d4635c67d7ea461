// SPDX-License-Identifier: MIT
#include "tessera/core/phase_clock.h"

#include <deque>
#include <thread>

#include "lib/core/clock.h"
#include "lib/core/phase_points.h"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

void work(double seconds) {
  for (const double end = now_s() + seconds; now_s() < end;) {
  }
}

// A simulated device that executes issued work and points on demand.
struct Device {
  double now = 0;
  int waits = 0;  // of the host
  std::deque<std::function<void()>> queue;

  void issue(double seconds) {
    queue.push_back([this, seconds] { now += seconds; });
  }
  void run(size_t pieces) {
    for (size_t i = 0; i < pieces; ++i, queue.pop_front()) queue.front()();
  }
};

class DevicePoints final : public PhasePoints {
 public:
  explicit DevicePoints(Device& device) : device_(device) {}
  void clear() override { used_ = 0; }
  void mark() override {
    if (used_ == at_.size()) at_.emplace_back();
    at_[used_].reset();
    device_.queue.push_back([this, i = used_] { at_[i] = device_.now; });
    ++used_;
  }
  void wait() const override {
    if (at_[used_ - 1]) return;
    ++device_.waits;
    device_.run(device_.queue.size());
  }
  double seconds(size_t from, size_t to) const override { return *at_[to] - *at_[from]; }

 private:
  Device& device_;
  std::deque<std::optional<double>> at_;
  size_t used_ = 0;
};

PhaseClock clock_of(Device& device) {
  return PhaseClock([&] { return std::make_unique<DevicePoints>(device); });
}

}  // namespace

TEST_CASE("an inner phase's time is not the outer one's, and times are a thread's own") {
  PhaseClock clock(at::kCPU);
  clock.begin_step();
  const double begin = now_s();
  {
    const PhaseScope forward(Phase::kForward);
    work(0.02);
    {
      const PhaseScope wait(Phase::kCommunication);
      work(0.03);
    }
    work(0.01);
  }
  work(0.02);  // in no phase
  std::thread([] {
    const PhaseScope optimizer(Phase::kOptimizer);
    work(0.01);
  }).join();
  const double whole = now_s() - begin;
  clock.end_step();
  const PhaseTimes times = clock.read().value();
  CHECK(times.forward_s >= 0.03);
  CHECK(times.communication_s >= 0.03);
  CHECK(times.forward_s + times.communication_s <= whole - 0.03);
  CHECK(times.backward_s == 0);
  CHECK(times.optimizer_s == 0);
  CHECK(times.step_s >= whole);
  CHECK(!times.copies_s);
  CHECK(!clock.read());
}

TEST_CASE("a device's phases are read while the next step is issued, and nobody waits for them") {
  Device device;
  PhaseClock clock = clock_of(device);
  double issued_s = 0;
  for (int step = 1; step <= 5; ++step) {
    clock.begin_step();
    const size_t before = device.queue.size();
    device.issue(1 * step);  // in no phase
    {
      const PhaseScope forward(Phase::kForward);
      device.issue(2 * step);
      {
        const PhaseScope wait(Phase::kCommunication);
        device.issue(4 * step);
        const PhaseScope same(Phase::kCommunication);
        device.issue(8 * step);
      }
      const PhaseScope loss(Phase::kBackward);
      device.issue(16 * step);
    }
    device.run(before);  // everything issued before this step
    const std::optional<PhaseTimes> times = clock.read();
    REQUIRE(times.has_value() == (step > 1));
    if (times) {
      const int last = step - 1;
      CHECK(times->forward_s == 2 * last);
      CHECK(times->communication_s == 12 * last);
      CHECK(times->backward_s == 16 * last);
      CHECK(times->optimizer_s == 32 * last);
      CHECK(times->step_s == 63 * last);
    }
    CHECK(!clock.read());
    {
      const PhaseScope optimizer(Phase::kOptimizer);
      device.issue(32 * step);
    }
    clock.end_step();
    {
      const PhaseScope evaluation(Phase::kForward);  // between steps
      device.issue(1000);
    }
    issued_s += 63 * step + 1000;
  }
  CHECK(device.waits == 0);
  clock.begin_step();
  clock.drop_step();
  CHECK(clock.read().value().step_s == 63 * 5);
  CHECK(device.waits == 1);
  CHECK(device.now == issued_s);
}

TEST_CASE("a step that an error ended is no part of the next") {
  Device device;
  PhaseClock clock = clock_of(device);
  clock.begin_step();
  try {
    const PhaseScope forward(Phase::kForward);
    device.issue(1);
    throw std::runtime_error("in forward");
  } catch (const std::runtime_error&) {
  }
  clock.begin_step();
  {
    const PhaseScope backward(Phase::kBackward);
    device.issue(2);
  }
  clock.end_step();
  const PhaseTimes times = clock.read().value();
  CHECK(times.forward_s == 0);
  CHECK(times.backward_s == 2);
  CHECK(times.step_s == 2);
}
