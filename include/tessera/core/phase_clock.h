// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What a step's time goes to: the host's where the host computes, a stream's where a GPU does. A
/// stream's points in time are read once it has passed them, so nobody waits for it.
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>

#include "tessera/core/not_copied.h"

namespace tessera {

/// What the computing stream does in a part of a step.
enum class Phase { kForward, kBackward, kCommunication, kOptimizer };

/// Seconds of one step.
struct PhaseTimes {
  double forward_s = 0, backward_s = 0;  ///< of the blocks, without what is counted below
  double communication_s = 0;            ///< waiting for other ranks
  double optimizer_s = 0;  ///< with the norm of the gradient, and waiting for offloaded updates
  double step_s = 0;       ///< from begin to end of the step, what is in no phase included
  /// From the end of the step before to the end of this one, by the GPU's clock; nothing on the
  /// CPU, where the host's says it, and for the first step.
  std::optional<double> since_last_end_s;
  /// Of copies between host and GPU that ended since the step before did, by stream: mostly beside
  /// the phases. Nothing on the CPU.
  std::optional<double> copies_s;
};

class PhasePoints;

/// Times the steps of one thread. At most two are under way: one whose times are not read yet, and
/// the next.
class PhaseClock {
 public:
  /// A GPU's clock is that of the stream which is the current one when a step begins.
  explicit PhaseClock(at::Device device);
  /// make gives the points of one step at a time; it is called twice.
  explicit PhaseClock(const std::function<std::unique_ptr<PhasePoints>()>& make);
  ~PhaseClock();
  PhaseClock(const PhaseClock&) = delete;
  PhaseClock& operator=(const PhaseClock&) = delete;

  void begin_anew();  ///< the next step follows none
  void begin_step();  ///< the step begins now, on the device's current stream
  void end_step();    ///< the step ends now
  void drop_step();   ///< begun, but there is none
  /// Of the step that ended last; waits for its end. Nothing when none ended since the last call,
  /// or the device refused to tell.
  std::optional<PhaseTimes> read();

  struct State;

 private:
  std::shared_ptr<State> state_;
};

/// What computes is in this phase, on the thread of a clock's step or in a backward pass that it
/// runs; what an inner scope takes is not the outer one's. Nothing elsewhere, and on other streams.
class PhaseScope : NotCopied {
 public:
  explicit PhaseScope(Phase phase);  ///< the phase lasts until the scope ends
  ~PhaseScope();

 private:
  PhaseClock::State* clock_;
  int outer_ = 0;
};

/// The stream copies between the host and a GPU: counted by the GPU's clock, where there is one.
/// Any thread; nothing on the CPU.
class CopyScope : NotCopied {
 public:
  explicit CopyScope(c10::Stream stream);  ///< times what the stream copies until the scope ends
  ~CopyScope();

 private:
  struct Copy;
  friend struct PhaseClock::State;
  std::shared_ptr<PhaseClock::State> clock_;
  std::unique_ptr<Copy> copy_;
  c10::Stream stream_;
};

}  // namespace tessera
