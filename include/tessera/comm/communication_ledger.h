// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What one rank calls on its communicators, in order: of a step that ran, or of a dry one.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

/// A communicator of the rank.
struct LedgerCommunicator {
  std::string name;        ///< the same on its ranks: "world", "world.1c0" of its second split
  std::vector<int> ranks;  ///< ranks of the world that form it, in its order
  int rank = 0;            ///< this one's place among them
  ///@{
  /// Of one made by Communicator::split_by(): the communicator that was split, among
  /// CommunicationLedger::communicators, how many splits of it came before, and what each of its
  /// ranks gives, by place. They say what the communicators of another rank are.
  int parent = -1, split = 0;
  std::vector<Communicator::Place> places = {};
  ///@}
};

/// What values decide about an operation, as those of the batch do. Shapes decide the rest.
enum class DecidedByData : uint8_t {
  kNothing,  ///< shapes decide all
  kCount,    ///< how many elements it has
  kWhether,  ///< whether there is such an operation
};

/// An operation without its tensors.
struct LedgerOperation {
  OperationKind kind = OperationKind::kBarrier;  ///< what ranks do
  ReduceOp reduce = ReduceOp::kSum;              ///< of all_reduce and reduce_scatter
  int peer = -1;            ///< root, destination or source, by its place in the communicator
  size_t communicator = 0;  ///< among CommunicationLedger::communicators
  int64_t start = 0;        ///< operations that start together, as a group, share it
  int64_t numel = 0;        ///< of an all_gather's input, a reduce_scatter's output, else the tensor
  at::ScalarType dtype = at::kByte;                      ///< of its tensors
  std::vector<int64_t> output_counts, input_counts;      ///< of an all_to_all with unequal parts
  DecidedByData decided = DecidedByData::kNothing;       ///< not to be compared with a dry run
  int64_t bytes_sent = 0;                                ///< as Communicator::bytes_sent() counts
  const char* phase = "";                                ///< of the run: "forward"
  std::string name;                                      ///< of the parameter, block or message
};

/// "the data axis (ranks 0, 2)": of a DeviceMesh whose world is recorded.
std::string text_of(const LedgerCommunicator& communicator);
/// "all_reduce of 512 Float, sum, for h.1, in reduce".
std::string text_of(const LedgerOperation& operation);

/// What a rank called.
struct CommunicationLedger {
  static constexpr int64_t kNotWaited = -1;  ///< a start that nobody waited for

  std::vector<LedgerCommunicator> communicators;  ///< in the order in which they were made
  std::vector<LedgerOperation> operations;        ///< in the order in which they started
  /// By start: how many operations had started when somebody first waited for it.
  std::vector<int64_t> waited;
  bool paused = false;  ///< nothing is written down meanwhile

  /// Forgets operations and keeps communicators.
  void clear() {
    operations.clear();
    waited.clear();
  }
};

/// The part of a communicator that a split by these places gives to the rank. parent: its place
/// among CommunicationLedger::communicators.
LedgerCommunicator part_of(const LedgerCommunicator& whole, int split,
                           std::vector<Communicator::Place> places, int parent);

/// A communicator that writes down what its rank calls, as do those that are split from it. One
/// ledger a rank. inner: of all ranks. before: called with each operation before it starts; the
/// operation does not start where it throws.
std::unique_ptr<Communicator> record_operations(
    std::unique_ptr<Communicator> inner, std::shared_ptr<CommunicationLedger> ledger,
    std::function<void(const LedgerOperation&)> before = {});

}  // namespace tessera
