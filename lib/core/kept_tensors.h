// SPDX-License-Identifier: MIT
#pragma once
// Tensors that a block's forward hands to its recomputation in backward.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {

// Of one block and micro-batch. Forward keeps groups of tensors; recomputation takes them in the
// same order. Between the two, tensors() may be moved elsewhere and put back.
class KeptTensors {
 public:
  using Group = std::vector<at::Tensor>;  // undefined tensors are legal

  void keep(Group group) { groups_.push_back(std::move(group)); }
  // Removes and returns the next group. Throws Error(kInternal) when there is none.
  Group take() {
    check(next_ < groups_.size(), ErrorCode::kInternal, "a recomputation takes group ", next_,
          " of kept tensors, and its forward kept ", groups_.size());
    return std::exchange(groups_[next_++], {});
  }
  const std::vector<Group>& groups() const { return groups_; }
  void clear() { groups_.clear(); }
  // All tensors, in order.
  std::vector<at::Tensor*> tensors() {
    std::vector<at::Tensor*> all;
    for (Group& group : groups_) {
      for (at::Tensor& tensor : group) all.push_back(&tensor);
    }
    return all;
  }

 private:
  std::vector<Group> groups_;
  size_t next_ = 0;
};

}  // namespace tessera
