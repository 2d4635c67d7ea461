// SPDX-License-Identifier: MIT
#pragma once
// What every transport shares: argument checks, the byte count, groups, the log of calls. A
// transport implements the start_ functions.
#include <memory>
#include <string>
#include <vector>

#include "lib/comm/operation_log.h"
#include "tessera/comm/communicator.h"

namespace tessera {

// Waits for several operations in the order they were started.
Work join_works(std::vector<Work> works);

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

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) final;
  Work all_gather(const at::Tensor& output, const at::Tensor& input) final;
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) final;
  Work broadcast(const at::Tensor& tensor, int root) final;
  Work send(const at::Tensor& tensor, int destination) final;
  Work recv(const at::Tensor& tensor, int source) final;
  void barrier() final;
  void begin_group() final;
  Work end_group() final;
  std::unique_ptr<Communicator> split(int color, int key) final;

 protected:
  // name: the same on all its ranks and no other communicator's of the job.
  CommunicatorBase(std::string transport, std::string name, at::Device device, int rank, int size,
                   std::shared_ptr<OperationLog> log);

  std::string name_of_part(int color);  // of the next split
  // The call for which a start_ function runs. Whoever sees it start and end marks it.
  const LoggedCall& call() const { return call_; }

  // Arguments are checked; empty tensors and operations of one rank with itself arrive here too.
  virtual Work start_all_reduce(const at::Tensor& tensor, ReduceOp op) = 0;
  virtual Work start_all_gather(const at::Tensor& output, const at::Tensor& input) = 0;
  virtual Work start_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                    ReduceOp op) = 0;
  virtual Work start_broadcast(const at::Tensor& tensor, int root) = 0;
  virtual Work start_send(const at::Tensor& tensor, int destination) = 0;
  virtual Work start_recv(const at::Tensor& tensor, int source) = 0;
  virtual void run_barrier() = 0;
  // Throws the sentence about a call of this rank, once the job knows it; cause as ReportFailure's.
  virtual void report(const LoggedCall& call, const std::string& cause) = 0;
  virtual std::unique_ptr<Communicator> run_split(int color, int key) = 0;
  // A transport with groups of its own overrides both; works are what the start_ functions
  // returned.
  virtual void open_group() {}
  virtual Work close_group(std::vector<Work> works) { return join_works(std::move(works)); }

  // For run_split() of a transport that has no split of its own: the ranks that gave this color,
  // by key and then by rank, and this rank's place among them. A collective, not counted as sent.
  struct Part {
    std::vector<int> ranks;
    int rank = 0;
  };
  Part agree_on_part(int color, int key);

 private:
  void check_tensor(const at::Tensor& tensor, const char* operation) const;
  void check_rank(int rank, const char* operation, const char* role) const;
  Work collect(Work work, int64_t bytes);
  void note(CallDescription call);
  void note(const char* operation, const at::Tensor& tensor, const char* suffix = "",
            int root = -1);
  void note_message(const char* operation, const at::Tensor& tensor, int source, int destination,
                    int64_t& messages);

  std::string transport_;
  std::string name_;
  at::Device device_;
  int rank_;
  int size_;
  std::shared_ptr<OperationLog> log_;
  int place_;
  LoggedCall call_;
  int64_t collectives_ = 0;
  int splits_ = 0;
  std::vector<int64_t> sent_, received_;  // messages of each pair
  int64_t bytes_sent_ = 0;
  bool grouping_ = false;
  std::vector<Work> group_;
};

}  // namespace tessera
