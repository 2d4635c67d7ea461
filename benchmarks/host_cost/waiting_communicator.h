// SPDX-License-Identifier: MIT
#pragma once
// Fake transport whose operations only take time, so that one rank of many runs alone and only its
// host's work remains.
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lib/comm/communicator_base.h"

namespace tessera::bench {

// State of one rank, shared by all its communicators.
struct Waiting {
  bool alone = false;  // peers no longer take part
  // duration of an operation then; those of one communicator run one by one
  double microseconds = 0;
  int64_t launches = 0;  // operations, a group counting once
};

// Uses `inner` until Waiting::alone. Then operations leave tensors unchanged, except int64 sums, by
// which ranks check agreement: they become zero, as if all agreed.
class WaitingCommunicator final : public CommunicatorBase {
 public:
  WaitingCommunicator(std::unique_ptr<Communicator> owned, Communicator& inner,
                      std::shared_ptr<OperationLog> log, std::shared_ptr<Waiting> state);
  // The rank's first communicator; inner outlives it.
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
  Work launch();  // an operation without peers

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  std::shared_ptr<Waiting> state_;
  Clock::time_point free_at_{};  // time at which its link is free
};

}  // namespace tessera::bench
