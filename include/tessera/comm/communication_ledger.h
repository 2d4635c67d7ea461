// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Ledger of one rank's communication, in order: of a step that ran, or of a dry run.
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
  /// Equal on its ranks: "world"; "world.1c0" for color 0 of its second split.
  std::string name;
  std::vector<int> ranks;  ///< ranks of the world that form it, in its order
  int rank = 0;            ///< this rank's position among them
  ///@{
  /// Origin of a communicator made by Communicator::split_by(). parent: index of the communicator
  /// that was split, in CommunicationLedger::communicators; split: number of earlier splits of it;
  /// arguments: color and key of each of its ranks. They determine the communicators of every other
  /// rank.
  int parent = -1, split = 0;
  std::vector<Communicator::SplitArguments> arguments = {};
  ///@}
};

/// Property of an operation that depends on data, such as the batch, and not only on shapes.
enum class DecidedByData : uint8_t {
  kNothing,  ///< shapes decide everything
  kCount,    ///< its element count
  kWhether,  ///< whether it takes place
};

/// A recorded operation, without its tensors.
struct LedgerOperation {
  OperationKind kind = OperationKind::kBarrier;  ///< what ranks do
  ReduceOp reduce = ReduceOp::kSum;              ///< for all_reduce and reduce_scatter
  int peer = -1;            ///< root, destination or source, as rank of the communicator
  size_t communicator = 0;  ///< index into CommunicationLedger::communicators
  int64_t start = 0;        ///< start number, shared by the operations of a group
  /// Elements of an all_gather's input, a reduce_scatter's output, else the tensor.
  int64_t numel = 0;
  at::ScalarType dtype = at::kByte;                  ///< dtype of its tensors
  std::vector<int64_t> output_counts, input_counts;  ///< for an all_to_all with unequal parts
  DecidedByData decided = DecidedByData::kNothing;   ///< property that a dry run cannot predict
  int64_t bytes_sent = 0;                            ///< as Communicator::bytes_sent() counts
  const char* phase = "";                            ///< phase of the step: "forward"
  std::string name;                                  ///< name of the parameter, block or message
};

/// "the data axis (ranks 0, 2)", for an axis of a DeviceMesh whose world is recorded.
std::string text_of(const LedgerCommunicator& communicator);
/// "all_reduce of 512 Float, sum, for h.1, in reduce".
std::string text_of(const LedgerOperation& operation);

/// Communicators and operations of one rank.
struct CommunicationLedger {
  static constexpr int64_t kNotWaited = -1;  ///< start that was never waited for

  std::vector<LedgerCommunicator> communicators;  ///< in order of creation
  std::vector<LedgerOperation> operations;        ///< in order of start
  /// By start: the number of operations started before its first wait.
  std::vector<int64_t> waited;
  bool paused = false;  ///< true: operations are not recorded

  /// Forgets operations and keeps communicators.
  void clear() {
    operations.clear();
    waited.clear();
  }
};

/// The communicator that a split of `whole` by these arguments gives to this rank. split: number of
/// earlier splits; parent: index of `whole` in CommunicationLedger::communicators.
LedgerCommunicator part_of(const LedgerCommunicator& whole, int split,
                           std::vector<Communicator::SplitArguments> arguments, int parent);

/// A communicator that records its rank's operations, as do splits of it; one ledger per rank.
/// inner: all ranks of the world. before: called before each operation starts; if it throws, the
/// operation does not start.
std::unique_ptr<Communicator> record_operations(
    std::unique_ptr<Communicator> inner, std::shared_ptr<CommunicationLedger> ledger,
    std::function<void(const LedgerOperation&)> before = {});

}  // namespace tessera
