// SPDX-License-Identifier: MIT
#pragma once

namespace tessera {

// A block of which a GPU may record what forward() and its backward issue, and run it again for
// other micro-batches of the same shapes: the host decides nothing by their values. Outside of
// training: of forward() and a Head's logits() of one more token a row.
class RecordedBlock {
 public:
  virtual ~RecordedBlock() = default;
  virtual bool records(bool /*training*/) const { return true; }
};

}  // namespace tessera
