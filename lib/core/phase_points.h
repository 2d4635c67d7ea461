#pragma once
#include <c10/core/Event.h>

#include <cstddef>

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
  // Null where points are no events.
  virtual const c10::Event* event(size_t /*point*/) const { return nullptr; }
};

}  // namespace tessera
