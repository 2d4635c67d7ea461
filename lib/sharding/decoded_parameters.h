// SPDX-License-Identifier: MIT
#pragma once
// Values of units that are stored as 8-bit codes, in the compute dtype, while a block uses them.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/sharding/buffer_slots.h"
#include "tessera/sharding/unit.h"

namespace tessera {

// One buffer serves all units in turn: a block has at most one unit of codes, and blocks that share
// a unit are decoded together. Units outlive it.
class DecodedParameters {
 public:
  DecodedParameters(const std::vector<ParameterUnit>& units, at::ScalarType dtype,
                    at::Device device);

  bool any() const { return any_; }
  // Without `decodes` counts a use of codes alone. Otherwise decodes the unit into the buffer, to
  // which its handles are bound, on the current stream.
  // gathered, resident: its codes before and from layout.resident_begin().
  void acquire(size_t unit, const at::Tensor& gathered, const at::Tensor& resident, bool decodes);
  void release(size_t unit);
  // The next acquire() of any unit decodes again.
  void drop();

  int64_t scale_bytes() const;   // bytes of all scales
  int64_t buffer_bytes() const;  // bytes of the buffer

 private:
  const std::vector<ParameterUnit>& units_;
  std::optional<BufferSlots> slots_;
  std::optional<size_t> present_;  // the unit whose values the buffer holds
  int uses_ = 0;                   // its uses that are not released
  int uses_of_codes_ = 0;          // uses of any unit's codes alone
  bool any_ = false;
};

}  // namespace tessera
