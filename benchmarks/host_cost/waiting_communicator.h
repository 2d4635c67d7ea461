// SPDX-License-Identifier: MIT
#pragma once
// A transport whose operations move nothing and only take time, so that one rank can run alone
// among many and what remains is its host's work.
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
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
  Work start_one(const Request& request) override { return start_group({&request, 1}); }
  Work start_group(std::span<const Request> requests) override;
  void run_barrier(const LoggedCall& call) override;
  void report(const LoggedCall& call, const std::string& cause) override;
  std::unique_ptr<Communicator> run_split(int color, int key, const LoggedCall& call) override;

 private:
  using Clock = std::chrono::steady_clock;
  Work launch();  // of an operation without peers

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  std::shared_ptr<Waiting> state_;
  Clock::time_point free_at_{};  // of its link
};

}  // namespace tessera::bench
