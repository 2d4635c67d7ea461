// SPDX-License-Identifier: MIT
#pragma once

namespace tessera {

// A block of which a GPU may record what forward() and its backward issue, and run it again for
// other micro-batches of the same shapes: the host decides nothing by their values.
class RecordedBlock {
 public:
  virtual ~RecordedBlock() = default;
  virtual bool records() const { return true; }
};

}  // namespace tessera
