// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// One operation of a communicator, as a value.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera {

/// How elements of several ranks become one.
enum class ReduceOp { kSum, kMax, kMin };

/// What ranks do together. kSend and kRecv are messages, the others collectives.
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

/// "all_reduce", as the calls of Communicator are named.
const char* name_of(OperationKind kind);

/// An operation and its tensors. The calls of Communicator say what each kind does.
struct Operation {
  OperationKind kind = OperationKind::kBarrier;  ///< what ranks do
  /// What is written. all_reduce and broadcast have this one alone; undefined for send.
  at::Tensor output{};
  at::Tensor input{};                ///< what is read; undefined for those two and recv
  ReduceOp reduce = ReduceOp::kSum;  ///< of all_reduce and reduce_scatter
  int peer = -1;                     ///< the root, the destination or the source
  /// Of all_to_all: elements from and for each rank. Empty: all parts are equal.
  std::vector<int64_t> output_counts{}, input_counts{};
  /// A parameter or message, for the log of operations; lives until the operation has started.
  std::string_view name{};

  /// Between two ranks.
  bool is_message() const { return kind == OperationKind::kSend || kind == OperationKind::kRecv; }
  /// The tensor that says dtype and device.
  const at::Tensor& tensor() const { return output.defined() ? output : input; }
};

}  // namespace tessera
