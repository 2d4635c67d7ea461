// SPDX-License-Identifier: MIT
#pragma once
// Embedding-gradient rows that arrive after the table's reduction began.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/core/not_copied.h"

namespace tessera {

// Receives rows in place of one gradient, found process-wide by the gradient's address.
class LateRows : NotCopied {
 public:
  struct Rows {
    at::Tensor ids, rows;  // int64 [n], and [n, columns] to add to those rows
  };

  ~LateRows() { close(); }
  // gradient: [rows, columns]; its address must not change until close().
  void open(const at::Tensor& gradient);
  void close();
  // Rows handed over since the last call.
  std::vector<Rows> take() { return std::exchange(rows_, {}); }

 private:
  friend bool hand_over_rows(const at::Tensor& gradient, const at::Tensor& ids,
                             const at::Tensor& rows);

  // Storage, and offset of the gradient in elements.
  using Place = std::pair<const void*, int64_t>;
  static Place place_of(const at::Tensor& gradient) {
    return {gradient.storage().unsafeGetStorageImpl(), gradient.storage_offset()};
  }
  friend struct OpenRows;

  Place place_;
  std::vector<Rows> rows_;
};

// Declares a sparse gradient: the block's backward only adds rows for the micro-batch's ids to it,
// by ops::embedding().
void promise_rows(const at::Tensor& parameter);
bool promises_rows(const at::Tensor& parameter);

// Hands over rows [..., columns] for rows `ids` of the gradient. True if they were taken, so that
// the caller adds nothing. Any thread.
bool hand_over_rows(const at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& rows);

}  // namespace tessera
