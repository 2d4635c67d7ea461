#pragma once
// Fixed buffers that the blocks in flight take turns in.
#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <vector>

namespace tessera {

// Users of equal size share `depth` buffers in turn: users next to each other never share one. An
// exclusive user has its own. The assignment is static, so addresses never change and nothing is
// allocated inside a step.
class BufferSlots {
 public:
  // numel[u]: elements for user u. Buffers start as zeros.
  BufferSlots(const std::vector<int64_t>& numel, const std::vector<bool>& exclusive, int depth,
              at::TensorOptions options);

  size_t slot_of(size_t user) const { return slot_of_[user]; }
  const at::Tensor& buffer(size_t user) const { return buffers_[slot_of_[user]]; }
  size_t slot_count() const { return buffers_.size(); }
  int64_t bytes() const;

 private:
  std::vector<size_t> slot_of_;
  std::vector<at::Tensor> buffers_;
};

}  // namespace tessera
