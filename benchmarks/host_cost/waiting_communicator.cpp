// SPDX-License-Identifier: MIT
#include "benchmarks/host_cost/waiting_communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zero.h>

#include <algorithm>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

class Until final : public Work::Impl {
 public:
  explicit Until(std::chrono::steady_clock::time_point end) : end_(end) {}
  void wait() override {
    while (std::chrono::steady_clock::now() < end_) {
    }
  }

 private:
  std::chrono::steady_clock::time_point end_;
};

}  // namespace

WaitingCommunicator::WaitingCommunicator(std::unique_ptr<Communicator> owned, Communicator& inner,
                                         std::shared_ptr<OperationLog> log,
                                         std::shared_ptr<Waiting> state)
    : CommunicatorBase("waiting", "world", inner.device(), inner.rank(), inner.size(),
                       std::move(log)),
      owned_(std::move(owned)),
      inner_(inner),
      state_(std::move(state)) {}

WaitingCommunicator::WaitingCommunicator(Communicator& inner, std::shared_ptr<Waiting> state)
    : WaitingCommunicator(nullptr, inner, std::make_shared<OperationLog>(inner.rank()),
                          std::move(state)) {}

Work WaitingCommunicator::launch() {
  ++state_->launches;
  const auto takes = std::chrono::duration<double, std::micro>(state_->microseconds);
  free_at_ = std::max(free_at_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(takes);
  return Work(std::make_shared<Until>(free_at_));
}

Work WaitingCommunicator::start_group(std::span<const Request> requests) {
  if (!state_->alone) {
    std::vector<Operation> operations;
    for (const Request& each : requests) operations.push_back(*each.operation);
    return inner_.start(operations);
  }
  const at::NoGradGuard no_grad;
  for (const Request& each : requests) {
    at::Tensor output = each.operation->output;
    const bool compares =
        each.operation->kind == OperationKind::kAllReduce && output.scalar_type() == at::kLong;
    if (compares) at::zero_(output);
  }
  return launch();
}

void WaitingCommunicator::run_barrier(const LoggedCall&) {
  if (state_->alone) return launch().wait();
  inner_.barrier();
}

void WaitingCommunicator::report(const LoggedCall&, const std::string& cause) {
  fail(ErrorCode::kUnavailable, cause);
}

std::unique_ptr<Communicator> WaitingCommunicator::run_split(int color, int key,
                                                             const LoggedCall&) {
  check(!state_->alone, ErrorCode::kInternal, "split: the peers have been left");
  std::unique_ptr<Communicator> part = inner_.split(color, key);
  Communicator& inner = *part;
  return std::make_unique<WaitingCommunicator>(std::move(part), inner, log(), state_);
}

}  // namespace tessera::bench
