// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What attention keeps of the tokens that rows have had so far, so that each token passes through
/// the model once.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

namespace tessera {

class RepeatedWork;

/// Of one batch of rows on one rank; blocks find their part by their own address. Memory is taken
/// at a block's first call and used again for later batches of this size.
class KeyValueCache {
 public:
  /// What one block keeps.
  struct Part {
    at::Tensor keys, values;  ///< [rows, capacity, key heads, d]
  };
  /// A cache for so many rows of at most so many tokens; allocates nothing yet.
  KeyValueCache(int64_t rows, int64_t capacity) : rows_(rows), capacity_(capacity) {}

  int64_t rows() const { return rows_; }          ///< rows of the batch
  int64_t capacity() const { return capacity_; }  ///< tokens a row can have

  /// keys [batch, n, key heads, d], or [1, n, key heads, d] of rows that lie end to end, gives
  /// heads, size, dtype and device of a part that is new. Throws Error(kInvalidArgument) when it
  /// does not fit the one that is there.
  const Part& part_of(const void* block, const at::Tensor& keys, bool end_to_end = false);
  /// Keeps the keys and values of the rows' first n tokens; both [batch, n, key heads, d].
  void begin(const void* block, const at::Tensor& keys, const at::Tensor& values);
  int64_t bytes() const;  ///< bytes of all parts

  ///@{
  /// What may record the work of one more token a row. For callers who give tensors in the same
  /// memory for every token and are done with the scores before the next one. Null: nothing does.
  void set_repeated(std::shared_ptr<RepeatedWork> work) { repeated_ = std::move(work); }
  const std::shared_ptr<RepeatedWork>& repeated() const { return repeated_; }
  ///@}

 private:
  int64_t rows_, capacity_;
  std::map<const void*, Part> parts_;
  std::shared_ptr<RepeatedWork> repeated_;  // reads the parts: gone before they are
};

}  // namespace tessera
