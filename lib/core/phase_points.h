// SPDX-License-Identifier: MIT
#pragma once
#include <c10/core/Event.h>

#include <cstddef>
#include <optional>

namespace tessera {

// Points in time of one step, in order; their memory is reused from step to step.
class PhasePoints {
 public:
  virtual ~PhasePoints() = default;
  // A new step, of what computes now.
  virtual void clear() = 0;
  // Whether what the calling thread issues now comes behind the points.
  virtual bool concern_this_thread() const { return true; }
  virtual void mark() = 0;
  // Returns when the last point is over.
  virtual void wait() const {}
  virtual double seconds(size_t from, size_t to) const = 0;
  // From the end of the step for which it was asked before to the end of this one, asked for last
  // of all; nothing for the first since begin_anew(), and where the host's clock says it as well.
  virtual std::optional<double> since_last_end() { return {}; }
  virtual void begin_anew() {}
  // Where since_last_end() will count from; null where it says nothing.
  virtual const c10::Event* last_end() const { return nullptr; }
  // Null where points are no events.
  virtual const c10::Event* event(size_t /*point*/) const { return nullptr; }
};

}  // namespace tessera
