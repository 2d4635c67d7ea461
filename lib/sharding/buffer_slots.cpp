// SPDX-License-Identifier: MIT
#include "tessera/sharding/buffer_slots.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>

#include "tessera/core/error.h"

namespace tessera {

SlotAssignment assign_slots(const std::vector<SlotUser>& users, int depth) {
  check(depth > 0, ErrorCode::kInternal, "assign_slots: depth ", depth);
  std::map<size_t, int64_t> gather_groups;  // by turn: elements of users that share buffers
  for (const SlotUser& user : users) {
    if (!user.exclusive && user.numel > 0) gather_groups[user.gather_group] += user.numel;
  }
  SlotAssignment result;
  std::map<size_t, size_t> slot_of_group;
  for (const auto& [gather_group, numel] : gather_groups) {
    const size_t slot = slot_of_group.size() % static_cast<size_t>(depth);
    if (slot == result.slot_numel.size()) result.slot_numel.push_back(0);
    result.slot_numel[slot] = std::max(result.slot_numel[slot], numel);
    slot_of_group.emplace(gather_group, slot);
  }
  std::map<size_t, int64_t> filled;  // by turn
  for (const SlotUser& user : users) {
    if (user.exclusive || user.numel == 0) {
      result.slot.push_back(result.slot_numel.size());
      result.offset.push_back(0);
      result.slot_numel.push_back(user.numel);
    } else {
      result.slot.push_back(slot_of_group[user.gather_group]);
      result.offset.push_back(filled[user.gather_group]);
      filled[user.gather_group] += user.numel;
    }
  }
  return result;
}

BufferSlots::BufferSlots(const std::vector<SlotUser>& users, int depth, at::TensorOptions options)
    : assignment_(assign_slots(users, depth)) {
  for (int64_t numel : assignment_.slot_numel) slots_.push_back(at::zeros({numel}, options));
  for (size_t user = 0; user < users.size(); ++user) {
    views_.push_back(slots_[slot_of(user)].narrow(0, assignment_.offset[user], users[user].numel));
  }
}

int64_t BufferSlots::bytes() const {
  int64_t sum = 0;
  for (const auto& slot : slots_) sum += static_cast<int64_t>(slot.nbytes());
  return sum;
}

}  // namespace tessera
