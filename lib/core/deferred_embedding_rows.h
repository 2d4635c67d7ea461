// SPDX-License-Identifier: MIT
#pragma once
// Embedding-gradient rows that arrive after the table's reduction began.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/core/not_copied.h"

namespace tessera {

// Receives rows in place of gradients. A gradient store has one, and blocks find it in their
// BlockContext. Any thread.
class DeferredEmbeddingRows : NotCopied {
 public:
  struct Rows {
    at::Tensor ids, rows;  // int64 [n], and [n, columns] to add to those rows
  };
  // The storage, and the element of it where a gradient begins.
  using GradientKey = std::pair<const void*, int64_t>;

  // gradient: [rows, columns]; its address must not change until close().
  GradientKey open(const at::Tensor& gradient);
  // Returns the rows handed over since open(), in their order.
  std::vector<Rows> close(const GradientKey& key);
  // Hands over rows [..., columns] for rows `ids` of the gradient. True if they were taken, so that
  // the caller adds nothing.
  bool hand_over(const at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& rows);

 private:
  std::mutex mutex_;
  std::map<GradientKey, std::vector<Rows>> open_;
};

}  // namespace tessera
