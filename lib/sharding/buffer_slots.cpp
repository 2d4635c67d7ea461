#include "tessera/sharding/buffer_slots.h"

#include <ATen/ops/zeros.h>

#include <map>

#include "tessera/core/error.h"

namespace tessera {

BufferSlots::BufferSlots(const std::vector<int64_t>& numel, const std::vector<bool>& exclusive,
                         int depth, at::TensorOptions options) {
  check(depth > 0, ErrorCode::kInternal, "BufferSlots: depth ", depth);
  struct SizeClass {
    std::vector<size_t> slots;
    size_t users = 0;
  };
  std::map<int64_t, SizeClass> classes;
  auto add = [&](int64_t size) {
    buffers_.push_back(at::zeros({size}, options));
    return buffers_.size() - 1;
  };
  for (size_t user = 0; user < numel.size(); ++user) {
    if (exclusive[user]) {
      slot_of_.push_back(add(numel[user]));
      continue;
    }
    SizeClass& same = classes[numel[user]];
    if (same.slots.size() < static_cast<size_t>(depth)) same.slots.push_back(add(numel[user]));
    slot_of_.push_back(same.slots[same.users++ % static_cast<size_t>(depth)]);
  }
}

int64_t BufferSlots::bytes() const {
  int64_t sum = 0;
  for (const auto& buffer : buffers_) sum += static_cast<int64_t>(buffer.nbytes());
  return sum;
}

}  // namespace tessera
