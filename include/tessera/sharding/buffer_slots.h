// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Buffer slots: fixed buffers that the units in flight share in rotation.
#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// User of a buffer.
struct SlotUser {
  int64_t numel = 0;  ///< elements needed
  /// Users of one gather_group are in use together; gather_groups run in increasing order, then
  /// backwards.
  size_t gather_group = 0;
  bool exclusive = false;  ///< has its own buffer in any gather_group
};

/// Round-robin assignment of gather_groups to slots, so that `depth` neighbouring gather_groups
/// never share one. A gather_group's users lie end to end in its slot, which has the size of its
/// largest gather_group: together at most the `depth` largest gather_groups.
struct SlotAssignment {
  std::vector<size_t> slot;         ///< slot by user
  std::vector<int64_t> offset;      ///< offset in the slot, by user
  std::vector<int64_t> slot_numel;  ///< size by slot
};
/// Assigns slots to users; the same on every rank.
SlotAssignment assign_slots(const std::vector<SlotUser>& users, int depth);

/// Buffers with a static assignment: constant addresses and no allocation inside a step.
class BufferSlots {
 public:
  /// Allocates zeroed buffers.
  BufferSlots(const std::vector<SlotUser>& users, int depth, at::TensorOptions options);

  /// The user's slot.
  size_t slot_of(size_t user) const { return assignment_.slot[user]; }
  const at::Tensor& buffer(size_t user) const { return views_[user]; }  ///< [numel]
  size_t slot_count() const { return slots_.size(); }                   ///< number of buffers
  int64_t bytes() const;                                                ///< bytes of all slots

 private:
  SlotAssignment assignment_;
  std::vector<at::Tensor> slots_, views_;
};

}  // namespace tessera
