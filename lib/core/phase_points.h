// SPDX-License-Identifier: MIT
#pragma once
#include <c10/core/Event.h>

#include <cstddef>
#include <optional>

namespace tessera {

// Time points of one step, in order; their memory is reused by later steps.
class PhasePoints {
 public:
  virtual ~PhasePoints() = default;
  // Begins a new step on the current stream.
  virtual void clear() = 0;
  // True if the calling thread's next work is ordered after the points.
  virtual bool concern_this_thread() const { return true; }
  virtual void mark() = 0;
  // Waits for the last point.
  virtual void wait() const {}
  virtual double seconds(size_t from, size_t to) const = 0;
  // Seconds from the end of the previously queried step to the end of this one; call last. Empty at
  // the first call since begin_anew(), and where host time suffices.
  virtual std::optional<double> since_last_end() { return {}; }
  virtual void begin_anew() {}
  // Start of since_last_end()'s interval; null where that is always empty.
  virtual const c10::Event* last_end() const { return nullptr; }
  // Null where points are not events.
  virtual const c10::Event* event(size_t /*point*/) const { return nullptr; }
};

}  // namespace tessera
