// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// One ordered channel over a fixed set of ranks, and the handle of an operation under way on it.
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

/// Handle of asynchronous operations; a default-constructed one is already complete. It keeps the
/// tensors of the operation alive. wait() on a GPU makes the current stream wait (the host goes
/// on); on a CPU it blocks the caller. It throws Error(kUnavailable) when the communicator was
/// aborted. Copies share the operation; waiting twice is harmless.
class Work {
 public:
  /// One operation under way; transports derive theirs from it.
  class Impl {
   public:
    virtual ~Impl() = default;
    virtual void wait() = 0;  ///< as Work::wait(); called once
  };

  Work() = default;
  /// Takes an operation that has begun.
  explicit Work(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  /// Waits as the class says; afterwards this handle has no operation.
  void wait() {
    if (impl_ == nullptr) return;
    impl_->wait();
    impl_.reset();
  }
  bool pending() const { return impl_ != nullptr; }  ///< not yet waited for through this handle

 private:
  std::shared_ptr<Impl> impl_;
};

/// Every rank of the communicator calls the same operations in the same order. Tensors are
/// contiguous, live on device(), and are any of float32, float64, float16, bfloat16, int64, int32,
/// int8, uint8. All operations return at once; their tensors must not be touched before wait() on
/// the returned Work. On a GPU an operation starts after what the current stream holds when it is
/// called. A size-1 communicator is an ordinary one. Calls on one communicator come from one
/// thread.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;               ///< this rank's number, from 0
  virtual int size() const = 0;               ///< the number of ranks
  virtual at::Device device() const = 0;      ///< the device on which its tensors are
  virtual std::string transport() const = 0;  ///< "local", "mpi", "tcp" or "nccl"

  /// Starts operations that run together, at least one; the handle of all of them. A kBarrier comes
  /// alone, and may end before this returns. Callers use run() or the calls below.
  virtual Work start(std::span<const Operation> operations) = 0;

  /// In place; every rank ends with the same bits.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
    return run({.kind = OperationKind::kAllReduce, .output = tensor, .reduce = op});
  }
  /// output.numel() == size() * input.numel(); rank r's input becomes output's r-th part. input may
  /// be output's own part (the r-th slice of the same storage): then nothing is copied.
  Work all_gather(const at::Tensor& output, const at::Tensor& input) {
    return run({.kind = OperationKind::kAllGather, .output = output, .input = input});
  }
  /// input.numel() == size() * output.numel(); output becomes the reduction of everyone's rank()-th
  /// part. output may be input's own part; the rest of input then has no defined value afterwards.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op = ReduceOp::kSum) {
    return run(
        {.kind = OperationKind::kReduceScatter, .output = output, .input = input, .reduce = op});
  }
  /// Both tensors have size() equal parts and no memory in common; output's r-th part becomes rank
  /// r's rank()-th part of input.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input) {
    return run({.kind = OperationKind::kAllToAll, .output = output, .input = input});
  }
  /// Likewise with parts of unequal lengths, one behind the other: input_counts[r] elements go to
  /// rank r, output_counts[r] come from it, which is what r gives for this rank. Counts may be 0.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                  std::vector<int64_t> output_counts, std::vector<int64_t> input_counts) {
    return run({.kind = OperationKind::kAllToAll,
                .output = output,
                .input = input,
                .output_counts = std::move(output_counts),
                .input_counts = std::move(input_counts)});
  }
  /// Every rank gets the root's tensor; the same shape and dtype on all ranks.
  Work broadcast(const at::Tensor& tensor, int root) {
    return run({.kind = OperationKind::kBroadcast, .output = tensor, .peer = root});
  }
  /// Point to point; matched in order per pair of ranks, independent of the collectives.
  Work send(const at::Tensor& tensor, int destination) {
    return run({.kind = OperationKind::kSend, .input = tensor, .peer = destination});
  }
  /// Into the tensor; see send().
  Work recv(const at::Tensor& tensor, int source) {
    return run({.kind = OperationKind::kRecv, .output = tensor, .peer = source});
  }
  /// Returns when every rank has called it (blocks the host).
  void barrier() { run({.kind = OperationKind::kBarrier}).wait(); }

  /// Starts the operation; within a group it is only collected, and the handle is empty. Throws
  /// Error(kInvalidArgument) for arguments that do not fit, in a group at its end.
  Work run(Operation operation);

  /// Between the two calls operations are collected; end_group() starts them together and returns
  /// their common handle. Groups do not nest and hold no barrier and no split. Use Group below.
  void begin_group();
  Work end_group();  ///< ends the scope; the handle of all its operations

  /// Collective: ranks with the same color form a new communicator, ordered by (key, old rank).
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  /// What a rank gives to split().
  struct Place {
    int color = 0;  ///< ranks with the same one are together
    int key = 0;    ///< orders them
  };
  /// The same where every rank can say what each of the others gives: place(r) is rank r's. A mesh
  /// that is not there (FakeMesh) needs it so.
  virtual std::unique_ptr<Communicator> split_by(const std::function<Place(int rank)>& place) {
    const auto [color, key] = place(rank());
    return split(color, key);
  }

  /// Ends every pending and future operation of this communicator on every rank it can reach with
  /// Error(kUnavailable, reason). Any thread.
  virtual void abort(const std::string& reason) = 0;

  /// Bytes this rank has handed to the wire since construction, in the ring model: all_reduce
  /// 2(n-1)/n, all_gather and reduce_scatter (n-1)/n of the full tensor, all_to_all what goes to
  /// other ranks, broadcast and send the tensor once.
  virtual int64_t bytes_sent() const = 0;

 protected:
  bool grouping() const { return grouping_; }  ///< a group is open

 private:
  bool grouping_ = false;
  std::vector<Operation> group_;
};

/// Scope in which operations are collected:  Group group(comm); ...; Work work = group.end();
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
  /// Runs what was collected; once.
  Work end() { return std::exchange(comm_, nullptr)->end_group(); }

 private:
  Communicator* comm_;
};

/// A channel that talks through a communicator, which must outlive it.
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
