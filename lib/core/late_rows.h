// SPDX-License-Identifier: MIT
#pragma once
// Rows that a backward pass would add to a gradient which nobody may write any more, because it is
// on its way to other ranks.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/core/not_copied.h"

namespace tessera {

// Takes rows in place of one gradient. Known by the gradient's place in memory to the whole process.
class LateRows : NotCopied {
 public:
  struct Rows {
    at::Tensor ids, rows;  // int64 [n], and [n, columns] to be added to the rows of these numbers
  };

  ~LateRows() { close(); }
  // gradient: [rows, columns], which stays where it is until close().
  void open(const at::Tensor& gradient);
  void close();
  // What was handed over since the last call.
  std::vector<Rows> take() { return std::exchange(rows_, {}); }

 private:
  friend bool hand_over_rows(const at::Tensor& gradient, const at::Tensor& ids,
                             const at::Tensor& rows);

  // The storage, and the element of it where the gradient begins.
  using Place = std::pair<const void*, int64_t>;
  static Place place_of(const at::Tensor& gradient) {
    return {gradient.storage().unsafeGetStorageImpl(), gradient.storage_offset()};
  }
  friend struct OpenRows;

  Place place_;
  std::vector<Rows> rows_;
};

// A block's word about a parameter of its own: its backward adds to the gradient rows of the
// micro-batch's ids by ops::embedding(), and nothing else.
void promise_rows(const at::Tensor& parameter);
bool promises_rows(const at::Tensor& parameter);

// For who adds rows [..., columns] to the rows `ids` of the gradient: whether they were taken, so
// that nothing is to be added. Any thread.
bool hand_over_rows(const at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& rows);

}  // namespace tessera
