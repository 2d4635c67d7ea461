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
  if (grouping_) {
    collected_ = true;
    return Work();
  }
  ++state_->launches;
  const auto takes = std::chrono::duration<double, std::micro>(state_->microseconds);
  free_at_ = std::max(free_at_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(takes);
  return Work(std::make_shared<Until>(free_at_));
}

Work WaitingCommunicator::close_group(std::vector<Work> works) {
  grouping_ = false;
  if (state_->alone) return std::exchange(collected_, false) ? launch() : Work();
  return join_works(std::move(works));
}

Work WaitingCommunicator::start_all_reduce(const at::Tensor& tensor, ReduceOp op) {
  if (!state_->alone) return inner_.all_reduce(tensor, op);
  const at::NoGradGuard no_grad;
  if (tensor.scalar_type() == at::kLong) at::zero_(const_cast<at::Tensor&>(tensor));
  return launch();
}

Work WaitingCommunicator::start_all_gather(const at::Tensor& output, const at::Tensor& input) {
  return state_->alone ? launch() : inner_.all_gather(output, input);
}

Work WaitingCommunicator::start_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                               ReduceOp op) {
  return state_->alone ? launch() : inner_.reduce_scatter(output, input, op);
}

Work WaitingCommunicator::start_broadcast(const at::Tensor& tensor, int root) {
  return state_->alone ? launch() : inner_.broadcast(tensor, root);
}

Work WaitingCommunicator::start_send(const at::Tensor& tensor, int destination) {
  return state_->alone ? launch() : inner_.send(tensor, destination);
}

Work WaitingCommunicator::start_recv(const at::Tensor& tensor, int source) {
  return state_->alone ? launch() : inner_.recv(tensor, source);
}

void WaitingCommunicator::run_barrier() {
  if (state_->alone) return launch().wait();
  inner_.barrier();
}

void WaitingCommunicator::report(const LoggedCall&, const std::string& cause) {
  fail(ErrorCode::kUnavailable, cause);
}

std::unique_ptr<Communicator> WaitingCommunicator::run_split(int color, int key) {
  check(!state_->alone, ErrorCode::kInternal, "split: the peers have been left");
  std::unique_ptr<Communicator> part = inner_.split(color, key);
  Communicator& inner = *part;
  return std::make_unique<WaitingCommunicator>(std::move(part), inner, log(), state_);
}

}  // namespace tessera::bench
