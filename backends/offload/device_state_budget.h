// SPDX-License-Identifier: MIT
#pragma once
// Device memory budget for masters and moments of some units, while the others are offloaded.
#include <algorithm>
#include <cstdint>

#include "tessera/sharding/flat_layout.h"

namespace tessera {

// Budget that units take in the order of forward, so that what forward needs first is ready first.
class DeviceStateBudget {
 public:
  explicit DeviceStateBudget(int64_t bytes) : left_(static_cast<double>(bytes)) {}

  double left() const { return left_; }
  // Takes the unit's state from the budget if it fits. Uses the size on the largest rank, so that
  // all ranks decide equally, as they update and publish units in one order. element,
  // small_element: bytes kept per element, and per element of a small parameter (StateRules).
  bool take(const FlatLayout& layout, double element, double small_element) {
    double bytes = 0;
    for (int rank = 0; rank < (element == small_element ? 1 : layout.shards()); ++rank) {
      double own = 0;
      for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
        for (const OwnedRun& run : layout.owned_runs(segment, rank)) {
          own += static_cast<double>(run.range.numel) * (run.small ? small_element : element);
        }
      }
      bytes = std::max(bytes, own);
    }
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }

 private:
  double left_;
};

}  // namespace tessera
