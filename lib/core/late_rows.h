// SPDX-License-Identifier: MIT
#pragma once
// Rows that a backward pass would add to a gradient which nobody may write any more, because it is
// on its way to other ranks.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/core/not_copied.h"

namespace tessera {

// Takes rows in place of gradients. A store of gradients has one, and blocks find it in their
// BlockContext. Any thread.
class LateRows : NotCopied {
 public:
  struct Rows {
    at::Tensor ids, rows;  // int64 [n], and [n, columns] to be added to the rows of these numbers
  };
  // The storage, and the element of it where a gradient begins.
  using Place = std::pair<const void*, int64_t>;

  // gradient: [rows, columns], which stays where it is until close().
  Place open(const at::Tensor& gradient);
  // Returns what was handed over since open(): in the order in which it came.
  std::vector<Rows> close(const Place& place);
  // For who adds rows [..., columns] to the rows `ids` of the gradient: whether they were taken, so
  // that nothing is to be added.
  bool hand_over(const at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& rows);

 private:
  std::mutex mutex_;
  std::map<Place, std::vector<Rows>> open_;
};

}  // namespace tessera
