// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Operation of a communicator, as a value.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera {

/// Element-wise reduction over ranks.
enum class ReduceOp { kSum, kMax, kMin };

/// Kind of operation. kSend and kRecv are messages, the others collectives.
enum class OperationKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kSend,
  kRecv,
  kBarrier
};

/// The kind's name, as Communicator's calls: "all_reduce".
const char* name_of(OperationKind kind);

/// An operation with its tensors; Communicator's calls define each kind.
struct Operation {
  OperationKind kind = OperationKind::kBarrier;  ///< which operation
  /// Tensor to write. all_reduce and broadcast use it alone; undefined for send.
  at::Tensor output{};
  at::Tensor input{};  ///< tensor to read; undefined for all_reduce, broadcast and recv
  ReduceOp reduce = ReduceOp::kSum;  ///< for all_reduce and reduce_scatter
  int peer = -1;                     ///< root, destination or source
  /// all_to_all: elements from and for each rank. Empty: equal parts.
  std::vector<int64_t> output_counts{}, input_counts{};
  /// Name of the parameter or message, for the log of operations; lives until the operation starts.
  std::string_view name{};

  /// Whether it is point to point.
  bool is_message() const { return kind == OperationKind::kSend || kind == OperationKind::kRecv; }
  /// The tensor that determines dtype and device.
  const at::Tensor& tensor() const { return output.defined() ? output : input; }
};

}  // namespace tessera
