// SPDX-License-Identifier: MIT
#pragma once
// What every transport shares: argument checks, the byte count, the log of calls. A transport
// starts what has passed them.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/comm/operation_log.h"
#include "tessera/comm/communicator.h"

namespace tessera {

// Waits for several operations in the order they were started.
Work join_works(std::vector<Work> works);

// What the log says of an operation, but for its sequence and the ends of a message.
CallDescription describe(const Operation& operation);

// Bytes that a rank hands to the wire, as Communicator::bytes_sent() counts them.
int64_t bytes_sent_by(const Operation& operation, int rank, int size);

// An operation whose arguments are right, and its place in the log.
struct Request {
  const Operation* operation;
  LoggedCall call;  // whoever sees it start and end marks it
};

// Where the parts of an all_to_all lie, in elements: one behind the other. counts: empty when all
// are equal.
class PartRanges {
 public:
  PartRanges(const at::Tensor& tensor, const std::vector<int64_t>& counts, int ranks);
  int64_t begin(int64_t rank) const { return begins_[static_cast<size_t>(rank)]; }
  int64_t count(int64_t rank) const { return begin(rank + 1) - begin(rank); }

 private:
  std::vector<int64_t> begins_;  // and the end
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
  // Throws the sentence about ranks that called something else than this; every rank calls it.
  [[noreturn]] void refuse(const LoggedCall& call);

  Work start(std::span<const Operation> operations) final;
  std::unique_ptr<Communicator> split(int color, int key) final;

 protected:
  // name: the same on all its ranks and no other communicator's of the job.
  CommunicatorBase(std::string transport, std::string name, at::Device device, int rank, int size,
                   std::shared_ptr<OperationLog> log);

  std::string name_of_part(int color);  // of the next split

  // Never kBarrier. Empty tensors arrive here, too; of one rank nothing does.
  virtual Work start_one(const Request& request) = 0;
  // Two or more, in the order of the calls. A transport with groups of its own overrides it.
  virtual Work start_group(std::span<const Request> requests);
  virtual void run_barrier(const LoggedCall& call) = 0;
  // Throws the sentence about a call of this rank, once the job knows it; cause as ReportFailure's.
  virtual void report(const LoggedCall& call, const std::string& cause) = 0;
  virtual std::unique_ptr<Communicator> run_split(int color, int key, const LoggedCall& call) = 0;

  // For run_split() of a transport that has no split of its own: the ranks that gave this color,
  // by key and then by rank, and this rank's place among them. A collective, not counted as sent.
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
  std::vector<int64_t> sent_, received_;  // messages of each pair
  int64_t bytes_sent_ = 0;
};

}  // namespace tessera
