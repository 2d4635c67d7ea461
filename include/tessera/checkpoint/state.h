// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The state of a training run as pieces of named tensors, independent of the strategy and of the
/// number of ranks that hold it. Strategies say it, checkpoints keep it.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/core/split_master.h"

namespace tessera {

/// Which elements of a whole tensor a piece has: of a local tensor, which is the whole one or a
/// slice of one dimension, the elements [begin, end) in row-major order.
struct TensorSlice {
  /// Of the sliced dimension: indices [local, local + size) are the whole's [global, global +
  /// size).
  struct Interval {
    int64_t local = 0, global = 0, size = 0;  ///< the first index in both tensors, and how many
    bool operator==(const Interval&) const = default;  ///< compares all members
  };
  std::vector<int64_t> shape;  ///< of the whole tensor
  int dim = -1;                ///< the sliced dimension; -1: the local tensor is the whole one
  int64_t local_size = 0;      ///< extent of that dimension in the local tensor, padding included
  /// In increasing order, without overlap; local indices in none of them are padding, which is
  /// zero. Empty when dim is -1.
  std::vector<Interval> intervals;
  int64_t begin = 0, end = 0;  ///< elements of the local tensor, in row-major order

  int64_t numel() const { return end - begin; }         ///< elements of the piece
  bool operator==(const TensorSlice&) const = default;  ///< compares all members
};

/// Bytes: a save copies smaller tensors before it returns, as what forward may change.
inline constexpr int64_t kSmallState = 1 << 10;

/// A piece of the state, as a view of the memory in which the run itself keeps it: valid, at the
/// same address, as long as the strategy is; read and written between steps only.
struct StateTensor {
  std::string name;  ///< canonical: block and parameter, such as "h.3.mlp.up.weight"
  /// "parameter" (fp32 masters; what forward reads where the parameter is frozen) or one of the
  /// optimizer's state names such as "exp_avg": the optimizer's step alone changes them. "buffer",
  /// and the scalars "step_count" of "optimizer" and "steps_begun" of "strategy" (int64, on the
  /// host): forward may change them.
  std::string kind;
  TensorSlice slice;  ///< which elements of the whole tensor it has
  /// 1-D, slice.numel() elements, contiguous, on any device; undefined where the piece is split.
  at::Tensor value;
  /// Ranks that hold the same bytes for the same slice, along independent axes; each may write a
  /// part of it.
  std::vector<Communicator*> replicas;
  bool frozen = false;  ///< a parameter that nothing changes
  /// Of masters beside parameters in bf16: views of both halves, 1-D. Such a piece counts as fp32,
  /// in checkpoints too; read it with get() and write it with set(), which do for every piece.
  SplitMaster split = {};

  /// `value` itself, or the values of a split piece in new memory.
  at::Tensor get() const { return MasterValues{value, split}.get(); }
  /// Writes the piece. values: of its shape, any device and dtype.
  void set(const at::Tensor& values) const { MasterValues{value, split}.set(values); }
  at::ScalarType dtype() const;  ///< of get()
  at::Device device() const;     ///< of get()
  int64_t nbytes() const;        ///< of get(), and of what is kept
  /// Elements [first, first + count) of it, and of its slice.
  StateTensor narrow(int64_t first, int64_t count) const;
};

}  // namespace tessera
