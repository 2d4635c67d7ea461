#include "tessera/core/phase_clock.h"

#include <thread>

#include "tessera/core/clock.h"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

void work(double seconds) {
  for (const double end = now_s() + seconds; now_s() < end;) {
  }
}

}  // namespace

TEST_CASE("an inner phase's time is not the outer one's, and times are a thread's own") {
  take_phase_times();
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
  const PhaseTimes times = take_phase_times();
  CHECK(times.forward_s >= 0.03);
  CHECK(times.communication_s >= 0.03);
  CHECK(times.forward_s + times.communication_s <= whole - 0.03);
  CHECK(times.backward_s == 0);
  CHECK(times.optimizer_s == 0);
  CHECK(take_phase_times().forward_s == 0);
}

TEST_CASE("times taken inside a phase are those until now") {
  take_phase_times();
  const PhaseScope backward(Phase::kBackward);
  work(0.01);
  const double first = take_phase_times().backward_s;
  CHECK(first >= 0.01);
  work(0.01);
  CHECK(take_phase_times().backward_s >= 0.01);
}
