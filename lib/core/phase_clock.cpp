#include "tessera/core/phase_clock.h"

#include <array>

#include "tessera/core/clock.h"

namespace tessera {
namespace {

constexpr int kNone = -1;

struct ThreadClock {
  std::array<double, 4> seconds{};
  int phase = kNone;
  double since = 0;

  void enter(int next) {
    const double now = now_s();
    if (phase != kNone) seconds[static_cast<size_t>(phase)] += now - since;
    phase = next;
    since = now;
  }
};

ThreadClock& clock_of_thread() {
  thread_local ThreadClock clock;
  return clock;
}

}  // namespace

PhaseScope::PhaseScope(Phase phase) : outer_(clock_of_thread().phase) {
  clock_of_thread().enter(static_cast<int>(phase));
}

PhaseScope::~PhaseScope() { clock_of_thread().enter(outer_); }

PhaseTimes take_phase_times() {
  ThreadClock& clock = clock_of_thread();
  clock.enter(clock.phase);
  const auto [forward, backward, communication, optimizer] = clock.seconds;
  clock.seconds = {};
  return {forward, backward, communication, optimizer};
}

}  // namespace tessera
