// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Training state as pieces of named tensors, independent of strategy and number of ranks.
/// Strategies expose it; checkpoints store it.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/core/split_master.h"

namespace tessera {

/// Elements of a whole tensor in a piece: elements [begin, end), in row-major order, of a local
/// tensor, which is the whole one or a slice of one dimension.
struct TensorSlice {
  /// Interval of the sliced dimension: local indices [local, local + size) are the whole's [global,
  /// global + size).
  struct Interval {
    int64_t local = 0, global = 0, size = 0;           ///< first index in both tensors, and length
    bool operator==(const Interval&) const = default;  ///< compares all members
  };
  std::vector<int64_t> shape;  ///< shape of the whole tensor
  int dim = -1;                ///< sliced dimension; -1: the local tensor is the whole one
  int64_t local_size = 0;      ///< local extent of that dimension, padding included
  /// Increasing, without overlap; other local indices are padding, which is zero. Empty when dim is
  /// -1.
  std::vector<Interval> intervals;
  int64_t begin = 0, end = 0;  ///< element range of the local tensor, in row-major order

  int64_t numel() const { return end - begin; }         ///< elements of the piece
  bool operator==(const TensorSlice&) const = default;  ///< compares all members
};

/// Size in bytes below which a save copies tensors before it returns, as forward may change them.
inline constexpr int64_t kSmallState = 1 << 10;

/// A piece of the state, as a view of the run's own memory. Its address is valid as long as the
/// strategy; read and write it only between steps.
struct StateTensor {
  std::string name;  ///< canonical name: block and parameter, such as "h.3.mlp.up.weight"
  /// Changed only by the optimizer step: "parameter" (fp32 masters; frozen: the values that forward
  /// reads) and the optimizer's state names such as "exp_avg". Never changed: "codes" (uint8) and
  /// "scale" of frozen matrices in 8 bits. Changed also by forward: "buffer", and the int64 host
  /// scalars "step_count" of "optimizer" and "steps_begun" of "strategy".
  std::string kind;
  TensorSlice slice;  ///< elements of the whole tensor in this piece
  /// 1-D, slice.numel() elements, contiguous, on any device; undefined if the piece is split.
  at::Tensor value;
  /// Ranks with the same bytes for the same slice, along independent axes; each may write a part.
  std::vector<Communicator*> replicas;
  bool frozen = false;  ///< a parameter that never changes
  /// Split masters beside bf16 parameters: 1-D views of both halves. Such a piece counts as fp32,
  /// also in checkpoints. get() and set() access every piece.
  SplitMaster split = {};

  /// `value` itself, or a split piece's values in new memory.
  at::Tensor get() const { return MasterValues{value, split}.get(); }
  /// Writes the piece. values: its shape, any device and dtype.
  void set(const at::Tensor& values) const { MasterValues{value, split}.set(values); }
  at::ScalarType dtype() const;  ///< dtype of get()
  at::Device device() const;     ///< device of get()
  int64_t nbytes() const;        ///< bytes of get(), which equal the bytes kept
  /// The piece's elements [first, first + count), with their slice.
  StateTensor narrow(int64_t first, int64_t count) const;
};

}  // namespace tessera
