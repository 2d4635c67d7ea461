// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What attention keeps of the tokens that rows have had so far, so that each token passes through
/// the model once.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

namespace tessera {

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

  /// keys [batch, n, key heads, d] gives heads, size, dtype and device of a part that is new.
  /// Throws Error(kInvalidArgument) when it does not fit the one that is there.
  const Part& part_of(const void* block, const at::Tensor& keys);
  /// Keeps the keys and values of the rows' first n tokens; both [batch, n, key heads, d].
  void begin(const void* block, const at::Tensor& keys, const at::Tensor& values);
  int64_t bytes() const;  ///< bytes of all parts

 private:
  int64_t rows_, capacity_;
  std::map<const void*, Part> parts_;
};

}  // namespace tessera
