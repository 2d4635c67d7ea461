// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Fixed buffers that the blocks in flight take turns in.
#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// What needs a buffer while it is in use.
struct SlotUser {
  int64_t numel = 0;  ///< elements that it needs
  /// Users of one turn are in use together; turns follow each other in increasing order, there and
  /// back.
  size_t turn = 0;
  bool exclusive = false;  ///< a buffer of its own, whatever the turn
};

/// Turns take the slots round and round, so that `depth` neighbours never meet. A slot is as large
/// as the largest of its turns, whose users lie in it one after the other: never more memory than
/// the `depth` largest turns take.
struct SlotAssignment {
  std::vector<size_t> slot;         ///< by user
  std::vector<int64_t> offset;      ///< by user, in its slot
  std::vector<int64_t> slot_numel;  ///< by slot
};
/// Assigns slots as SlotAssignment says; the same on every rank.
SlotAssignment assign_slots(const std::vector<SlotUser>& users, int depth);

/// The assignment is static, so addresses never change and nothing is allocated inside a step.
class BufferSlots {
 public:
  /// Buffers start as zeros.
  BufferSlots(const std::vector<SlotUser>& users, int depth, at::TensorOptions options);

  /// The slot that the user takes.
  size_t slot_of(size_t user) const { return assignment_.slot[user]; }
  const at::Tensor& buffer(size_t user) const { return views_[user]; }  ///< [numel]
  size_t slot_count() const { return slots_.size(); }                   ///< the number of buffers
  int64_t bytes() const;                                                ///< bytes of all slots

 private:
  SlotAssignment assignment_;
  std::vector<at::Tensor> slots_, views_;
};

}  // namespace tessera
