// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Communicator: collectives and messages over a fixed set of ranks, and the handle of an
/// operation.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/control_channel.h"
#include "tessera/comm/operation.h"

namespace tessera {

/// Handle of asynchronous operations; a default-constructed one is already complete. Keeps the
/// operation's tensors alive. wait() makes a GPU's current stream wait, not the host; on a CPU it
/// blocks the caller. It throws Error(kUnavailable) when the communicator was aborted. Copies share
/// the operation; waiting twice is harmless.
class Work {
 public:
  /// An operation in progress; base of the transports' own.
  class Impl {
   public:
    virtual ~Impl() = default;
    virtual void wait() = 0;  ///< as Work::wait(); called once
  };

  Work() = default;
  /// Takes a started operation.
  explicit Work(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  /// Waits as described above; afterwards this handle is empty.
  void wait() {
    if (impl_ == nullptr) return;
    impl_->wait();
    impl_.reset();
  }
  /// Whether it was not yet waited for through this handle.
  bool pending() const { return impl_ != nullptr; }

 private:
  std::shared_ptr<Impl> impl_;
};

/// Group of ranks with collectives and messages. Every rank calls the same operations in the same
/// order. Tensors are contiguous, on device(), of dtype float32, float64, float16, bfloat16, int64,
/// int32, int8, uint8. Operations are asynchronous: do not touch their tensors before wait() on the
/// returned Work. On a GPU an operation starts after the work already on the current stream. Size 1
/// is allowed. All calls come from one thread.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;               ///< this rank's number, from 0
  virtual int size() const = 0;               ///< the number of ranks
  virtual at::Device device() const = 0;      ///< device of its tensors
  virtual std::string transport() const = 0;  ///< "local", "mpi", "tcp" or "nccl"

  /// Starts operations that run together, at least one; returns their common handle. A kBarrier
  /// comes alone, and may end before this returns. Callers use run() or the calls below.
  virtual Work start(std::span<const Operation> operations) = 0;

  /// Reduces in place; every rank gets the same bits.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
    return run({.kind = OperationKind::kAllReduce, .output = tensor, .reduce = op});
  }
  /// Gathers every rank's input: output.numel() == size() * input.numel(), part r from rank r.
  /// input may be output's own part (the same storage), without a copy.
  Work all_gather(const at::Tensor& output, const at::Tensor& input) {
    return run({.kind = OperationKind::kAllGather, .output = output, .input = input});
  }
  /// Reduces and scatters: input.numel() == size() * output.numel(); output is the reduction of all
  /// ranks' part number rank(). output may be input's own part; the rest of input is then undefined
  /// afterwards.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op = ReduceOp::kSum) {
    return run(
        {.kind = OperationKind::kReduceScatter, .output = output, .input = input, .reduce = op});
  }
  /// Exchanges size() equal parts: output's part r is part number rank() of rank r's input. The
  /// tensors share no memory.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input) {
    return run({.kind = OperationKind::kAllToAll, .output = output, .input = input});
  }
  /// all_to_all() with unequal parts, end to end: input_counts[r] elements go to rank r,
  /// output_counts[r] come from it and match its count for this rank. Counts may be 0.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                  std::vector<int64_t> output_counts, std::vector<int64_t> input_counts) {
    return run({.kind = OperationKind::kAllToAll,
                .output = output,
                .input = input,
                .output_counts = std::move(output_counts),
                .input_counts = std::move(input_counts)});
  }
  /// Copies the root's tensor to every rank; same shape and dtype on all ranks.
  Work broadcast(const at::Tensor& tensor, int root) {
    return run({.kind = OperationKind::kBroadcast, .output = tensor, .peer = root});
  }
  /// Sends to one rank. Messages match in order per pair of ranks, independent of collectives.
  Work send(const at::Tensor& tensor, int destination) {
    return run({.kind = OperationKind::kSend, .input = tensor, .peer = destination});
  }
  /// Receives into the tensor; see send().
  Work recv(const at::Tensor& tensor, int source) {
    return run({.kind = OperationKind::kRecv, .output = tensor, .peer = source});
  }
  /// Blocks the host until every rank has called it.
  void barrier() { run({.kind = OperationKind::kBarrier}).wait(); }

  /// Starts the operation; inside a group it only collects it and returns an empty handle. Throws
  /// Error(kInvalidArgument) for mismatched arguments; in a group, end_group() throws.
  Work run(Operation operation);

  /// Collects the operations until end_group(), which starts them together. Groups do not nest and
  /// contain no barrier and no split. Prefer Group.
  void begin_group();
  Work end_group();  ///< starts the group; returns the handle of all its operations

  /// Collective: ranks with the same color form a new communicator, ordered by (key, old rank).
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  /// Color and key that a rank passes to split().
  struct SplitArguments {
    int color = 0;  ///< ranks with the same color form one communicator
    int key = 0;    ///< order of the ranks in it
  };
  /// split() when every rank knows all ranks' values: arguments(r) is rank r's. FakeMesh requires
  /// it.
  virtual std::unique_ptr<Communicator> split_by(
      const std::function<SplitArguments(int rank)>& arguments) {
    const auto [color, key] = arguments(rank());
    return split(color, key);
  }

  /// Ends every pending and future operation of this communicator on every rank it can reach with
  /// Error(kUnavailable, reason). Callable from any thread.
  virtual void abort(const std::string& reason) = 0;

  /// Bytes this rank sent since construction, in the ring model: all_reduce 2(n-1)/n, all_gather
  /// and reduce_scatter (n-1)/n of the full tensor, all_to_all what goes to other ranks, broadcast
  /// and send the tensor once.
  virtual int64_t bytes_sent() const = 0;

 protected:
  bool grouping() const { return grouping_; }  ///< a group is open

 private:
  bool grouping_ = false;
  std::vector<Operation> group_;
};

/// Scope in which operations form a group:  Group group(comm); ...; Work work = group.end();
class Group {
 public:
  /// The communicator outlives the scope.
  explicit Group(Communicator& comm) : comm_(&comm) { comm.begin_group(); }
  ~Group() {
    if (comm_ == nullptr) return;
    try {
      comm_->end_group();
    } catch (...) {  // unwinding: the communicator is already failing
    }
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  /// Starts the collected operations; called once.
  Work end() { return std::exchange(comm_, nullptr)->end_group(); }

 private:
  Communicator* comm_;
};

/// A control channel over a communicator, which must outlive it.
class CommunicatorChannel final : public ControlChannel {
 public:
  /// The communicator outlives the channel.
  explicit CommunicatorChannel(Communicator& comm) : comm_(&comm) {}
  int rank() const override;
  int size() const override;
  std::vector<std::string> exchange(const std::string& bytes) override;

 private:
  Communicator* comm_;
};

}  // namespace tessera
