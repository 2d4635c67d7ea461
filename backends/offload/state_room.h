// SPDX-License-Identifier: MIT
#pragma once
// Which units keep their masters and moments on the device though the others' are offloaded. Plans
// ask the same.
#include <algorithm>
#include <cstdint>

#include "tessera/sharding/flat_layout.h"

namespace tessera {

// Units come in the order in which forward needs them: what it needs first is ready first.
class StateRoom {
 public:
  explicit StateRoom(int64_t bytes) : left_(static_cast<double>(bytes)) {}

  double left() const { return left_; }
  // Whether the unit's state has room, which it then takes: that of the rank with most, so that all
  // decide alike, since they update and publish units in one order. element, small_element: bytes
  // that are kept for one, and for one of a small parameter (StateRules).
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
