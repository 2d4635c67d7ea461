// SPDX-License-Identifier: MIT
#pragma once
// A transport whose operations move nothing and only take time, so that one rank can run alone
// among many and what remains is its host's work.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "lib/comm/communicator_base.h"

namespace tessera::bench {

// Of one rank and all communicators split from its first.
struct Waiting {
  bool alone = false;       // peers are not asked any more
  double microseconds = 0;  // that an operation takes then; those of a communicator in turn
  int64_t launches = 0;     // operations, a group counting once
};

// With its peers, over `inner`, until Waiting::alone; then operations leave tensors as they are,
// but for sums of int64, by which ranks compare what they do: those become zero, as if all agreed.
class WaitingCommunicator final : public CommunicatorBase {
 public:
  WaitingCommunicator(std::unique_ptr<Communicator> owned, Communicator& inner,
                      std::shared_ptr<OperationLog> log, std::shared_ptr<Waiting> state);
  // The first; inner outlives it.
  WaitingCommunicator(Communicator& inner, std::shared_ptr<Waiting> state);
  void abort(const std::string& reason) override { inner_.abort(reason); }

 protected:
  Work start_all_reduce(const at::Tensor& tensor, ReduceOp op) override;
  Work start_all_gather(const at::Tensor& output, const at::Tensor& input) override;
  Work start_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                            ReduceOp op) override;
  Work start_broadcast(const at::Tensor& tensor, int root) override;
  Work start_send(const at::Tensor& tensor, int destination) override;
  Work start_recv(const at::Tensor& tensor, int source) override;
  void run_barrier() override;
  void report(const LoggedCall& call, const std::string& cause) override;
  std::unique_ptr<Communicator> run_split(int color, int key) override;
  void open_group() override { grouping_ = true; }
  Work close_group(std::vector<Work> works) override;

 private:
  using Clock = std::chrono::steady_clock;
  Work launch();  // of an operation without peers

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  std::shared_ptr<Waiting> state_;
  Clock::time_point free_at_{};  // of its link
  bool grouping_ = false, collected_ = false;
};

}  // namespace tessera::bench
