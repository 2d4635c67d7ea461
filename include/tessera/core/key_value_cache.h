// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Key/value cache: keys and values of past tokens, so that each token passes through the model
/// once.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

namespace tessera {

class DeviceGraphRunner;

/// Key/value cache of one batch of sequences on one rank; blocks find their part by their own
/// address. A block's first call allocates its memory, which later batches of this size reuse.
class KeyValueCache {
 public:
  /// Keys and values of one block.
  struct Part {
    at::Tensor keys, values;  ///< [rows, capacity, key heads, d]
  };
  /// A cache for so many rows of at most `capacity` tokens; allocates nothing yet.
  KeyValueCache(int64_t rows, int64_t capacity) : rows_(rows), capacity_(capacity) {}

  int64_t rows() const { return rows_; }          ///< rows of the batch
  int64_t capacity() const { return capacity_; }  ///< most tokens per row

  /// The block's part, allocated at the first call with heads, d, dtype and device of keys. keys:
  /// [batch, n, key heads, d], or [1, n, key heads, d] for packed rows. Throws
  /// Error(kInvalidArgument) when keys do not fit an existing part.
  const Part& part_of(const void* block, const at::Tensor& keys, bool end_to_end = false);
  /// Stores keys and values of the rows' first n tokens; both [batch, n, key heads, d].
  void begin(const void* block, const at::Tensor& keys, const at::Tensor& values);
  int64_t bytes() const;  ///< bytes of all parts

  ///@{
  /// CUDA graph runner for decoding one token per row. Requires tensors in the same memory for
  /// every token, and scores that are consumed before the next one. Null: no graphs.
  void set_repeated(std::shared_ptr<DeviceGraphRunner> work) { repeated_ = std::move(work); }
  const std::shared_ptr<DeviceGraphRunner>& repeated() const { return repeated_; }
  ///@}

 private:
  int64_t rows_, capacity_;
  std::map<const void*, Part> parts_;
  std::shared_ptr<DeviceGraphRunner> repeated_;  // reads the parts: destroyed before them
};

}  // namespace tessera
