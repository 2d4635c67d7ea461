// SPDX-License-Identifier: MIT
#pragma once
// Which units keep their masters and moments on the device though the others' are offloaded. Plans
// ask the same.
#include <cstdint>

#include "tessera/sharding/flat_layout.h"

namespace tessera {

// Units come in the order in which forward needs them: what it needs first is ready first.
class StateRoom {
 public:
  explicit StateRoom(int64_t bytes) : left_(static_cast<double>(bytes)) {}

  double left() const { return left_; }
  // Whether the unit's state has room, which it then takes. element: bytes that are kept for one,
  // the same on all ranks, since they update and publish units in one order.
  bool take(const FlatLayout& layout, double element) {
    const double bytes = element * static_cast<double>(layout.shard_numel());
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }

 private:
  double left_;
};

}  // namespace tessera
