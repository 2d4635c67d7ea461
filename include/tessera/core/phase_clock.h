#pragma once
// What a thread's time goes to, where the host computes: device work outlasts the calls that issue
// it, and is not seen here.

namespace tessera {

enum class Phase { kForward, kBackward, kCommunication, kOptimizer };

struct PhaseTimes {
  double forward_s = 0, backward_s = 0;
  double communication_s = 0;  // waiting for other ranks
  double optimizer_s = 0;      // with the norm of the gradient
};

// The calling thread is in this phase; what an inner scope takes is not the outer one's.
class PhaseScope {
 public:
  explicit PhaseScope(Phase phase);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  int outer_;
};

// Of the calling thread's scopes since it last called this.
PhaseTimes take_phase_times();

}  // namespace tessera
