// SPDX-License-Identifier: MIT
#pragma once
// Base of every transport: argument checks, the byte count, the operation log. start_one() gets
// checked operations only.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/comm/operation_log.h"
#include "tessera/comm/communicator.h"

namespace tessera {

// Waits for several operations in the order they were started.
Work join_works(std::vector<Work> works);

// The log's description of an operation, without its sequence number and a message's source and
// destination.
CallDescription describe(const Operation& operation);

// Bytes that a rank sends, as Communicator::bytes_sent() counts them.
int64_t bytes_sent_by(const Operation& operation, int rank, int size);

// An operation with checked arguments, and its record in the log.
struct Request {
  const Operation* operation;
  LoggedCall call;  // marked by the transport at start and end
};

// Offsets of the parts of an all_to_all, in elements; parts are contiguous. counts: empty when all
// parts are equal.
class PartRanges {
 public:
  PartRanges(const at::Tensor& tensor, const std::vector<int64_t>& counts, int ranks);
  int64_t begin(int64_t rank) const { return begins_[static_cast<size_t>(rank)]; }
  int64_t count(int64_t rank) const { return begin(rank + 1) - begin(rank); }

 private:
  std::vector<int64_t> begins_;  // one more than there are parts
};

class CommunicatorBase : public Communicator {
 public:
  ~CommunicatorBase() override;
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  at::Device device() const final { return device_; }
  std::string transport() const final { return transport_; }
  int64_t bytes_sent() const final { return bytes_sent_; }
  const std::string& name() const { return name_; }
  const std::shared_ptr<OperationLog>& log() const { return log_; }
  // Throws the diagnostic for ranks that called different operations; every rank calls this.
  [[noreturn]] void refuse(const LoggedCall& call);

  Work start(std::span<const Operation> operations) final;
  std::unique_ptr<Communicator> split(int color, int key) final;

 protected:
  // name: unique within the job and equal on all ranks of the communicator.
  CommunicatorBase(std::string transport, std::string name, at::Device device, int rank, int size,
                   std::shared_ptr<OperationLog> log);

  std::string name_of_part(int color);  // name of the next split's part

  // Starts one operation other than kBarrier. Called for empty tensors, but not on a communicator
  // of one rank.
  virtual Work start_one(const Request& request) = 0;
  // Starts two or more operations in the order of the calls. Overridden by transports with native
  // groups.
  virtual Work start_group(std::span<const Request> requests);
  virtual void run_barrier(const LoggedCall& call) = 0;
  // Throws the diagnostic for this rank's failed call once the job knows it; cause as
  // ReportFailure's.
  virtual void report(const LoggedCall& call, const std::string& cause) = 0;
  virtual std::unique_ptr<Communicator> run_split(int color, int key, const LoggedCall& call) = 0;

  // For run_split() of transports without a native split: the ranks of this color, by key and then
  // by rank, and this rank's index among them. Collective; its bytes are not counted as sent.
  struct Part {
    std::vector<int> ranks;
    int rank = 0;
  };
  Part agree_on_part(int color, int key, const LoggedCall& call);

 private:
  void check_arguments(const Operation& operation) const;
  void check_tensor(const at::Tensor& tensor, const char* operation) const;
  void check_parts(const Operation& operation) const;
  void check_peer(const Operation& operation, const char* role) const;
  LoggedCall note(const Operation& operation);
  LoggedCall note(CallDescription call, std::string_view label);

  std::string transport_;
  std::string name_;
  at::Device device_;
  int rank_;
  int size_;
  std::shared_ptr<OperationLog> log_;
  int place_;
  int64_t collectives_ = 0;
  int splits_ = 0;
  std::vector<int64_t> sent_, received_;  // number of messages to and from each rank
  int64_t bytes_sent_ = 0;
};

}  // namespace tessera
