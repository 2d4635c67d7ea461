// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Phase clock: time of a step's phases, on the host's clock for CPUs and by stream events for
/// GPUs. Events are read once they have passed, so nothing waits for them.
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>

#include "tessera/core/not_copied.h"

namespace tessera {

/// Phase of a step, as the computing stream sees it.
enum class Phase { kForward, kBackward, kCommunication, kOptimizer };

/// Seconds of one step's phases.
struct PhaseTimes {
  double forward_s = 0, backward_s = 0;  ///< the blocks, without the phases below
  double communication_s = 0;            ///< waiting for other ranks
  double optimizer_s = 0;  ///< gradient norm and waiting for offloaded updates included
  double step_s = 0;       ///< whole step, time outside the phases included
  /// From the previous step's end to this one's, by the GPU's clock; nothing on the CPU and for the
  /// first step.
  std::optional<double> since_last_end_s;
  /// Copies between host and GPU that ended since the previous step, summed over streams; they
  /// mostly overlap the phases. Nothing on the CPU.
  std::optional<double> copies_s;
};

class PhasePoints;

/// Timer of one thread's steps. At most two are in progress: one whose times are not read yet, and
/// the next.
class PhaseClock {
 public:
  /// A GPU's clock follows the stream that is current when a step begins.
  explicit PhaseClock(at::Device device);
  /// make: creates the points of one step; called twice.
  explicit PhaseClock(const std::function<std::unique_ptr<PhasePoints>()>& make);
  ~PhaseClock();
  PhaseClock(const PhaseClock&) = delete;
  PhaseClock& operator=(const PhaseClock&) = delete;

  void begin_anew();  ///< forgets the previous step's end
  void begin_step();  ///< begins a step, on the device's current stream
  void end_step();    ///< ends the step
  void drop_step();   ///< discards a begun step
  /// Times of the latest step; waits for its end. Nothing when no step ended since the last call,
  /// or the device reports no times.
  std::optional<PhaseTimes> read();

  struct State;

 private:
  std::shared_ptr<State> state_;
};

/// Counts time towards a phase, on the thread of a clock's step or in its backward pass. Inner
/// scopes are excluded from outer ones. No effect elsewhere, or on other streams.
class PhaseScope : NotCopied {
 public:
  explicit PhaseScope(Phase phase);  ///< begins the phase, which lasts until the scope ends
  ~PhaseScope();

 private:
  PhaseClock::State* clock_;
  int outer_ = 0;
};

/// Counts copies between host and GPU on a stream, by the GPU's clock. Any thread; no effect on the
/// CPU.
class CopyScope : NotCopied {
 public:
  explicit CopyScope(c10::Stream stream);  ///< times the stream's copies until the scope ends
  ~CopyScope();

 private:
  struct Copy;
  friend struct PhaseClock::State;
  std::shared_ptr<PhaseClock::State> clock_;
  std::unique_ptr<Copy> copy_;
  c10::Stream stream_;
};

}  // namespace tessera
