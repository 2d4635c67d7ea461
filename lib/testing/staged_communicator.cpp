// SPDX-License-Identifier: MIT
#include "lib/testing/staged_communicator.h"

#include <ATen/ATen.h>

namespace tessera::testing {
namespace {

at::Tensor to_host(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor host_like(const at::Tensor& tensor) {
  return at::empty_like(tensor, tensor.options().device(at::kCPU).requires_grad(false));
}

}  // namespace

class StagedCommunicator::Staged final : public Work::Impl {
 public:
  Staged(Work work, std::vector<Result> results)
      : work_(std::move(work)), results_(std::move(results)) {}
  void wait() override {
    work_.wait();
    // As other transports, past autograd's count of versions.
    for (const Result& result : results_) result.device.variable_data().copy_(result.host);
    results_.clear();
  }

 private:
  Work work_;
  std::vector<Result> results_;
};

Work StagedCommunicator::started(Work work, std::vector<Result> results) {
  if (!grouping_) return Work(std::make_shared<Staged>(std::move(work), std::move(results)));
  of_group_.insert(of_group_.end(), results.begin(), results.end());
  return Work();
}

Work StagedCommunicator::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  const at::Tensor host = to_host(tensor);
  return started(inner_->all_reduce(host, op), {{tensor, host}});
}

Work StagedCommunicator::all_gather(const at::Tensor& output, const at::Tensor& input) {
  const at::Tensor host = host_like(output);
  return started(inner_->all_gather(host, to_host(input)), {{output, host}});
}

Work StagedCommunicator::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                        ReduceOp op) {
  const at::Tensor host = host_like(output);
  return started(inner_->reduce_scatter(host, to_host(input), op), {{output, host}});
}

Work StagedCommunicator::broadcast(const at::Tensor& tensor, int root) {
  const at::Tensor host = to_host(tensor);
  return started(inner_->broadcast(host, root), {{tensor, host}});
}

Work StagedCommunicator::send(const at::Tensor& tensor, int destination) {
  return started(inner_->send(to_host(tensor), destination), {});
}

Work StagedCommunicator::recv(const at::Tensor& tensor, int source) {
  const at::Tensor host = host_like(tensor);
  return started(inner_->recv(host, source), {{tensor, host}});
}

void StagedCommunicator::begin_group() {
  inner_->begin_group();
  grouping_ = true;
}

Work StagedCommunicator::end_group() {
  grouping_ = false;
  return started(inner_->end_group(), std::exchange(of_group_, {}));
}

std::unique_ptr<Communicator> StagedCommunicator::split(int color, int key) {
  return std::make_unique<StagedCommunicator>(inner_->split(color, key), device_);
}

}  // namespace tessera::testing
