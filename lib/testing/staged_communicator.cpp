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
  struct Result {
    at::Tensor device, host;
  };
  Staged(Work work, std::vector<Result> results)
      : work_(std::move(work)), results_(std::move(results)) {}
  void wait() override {
    work_.wait();
    // As other transports, without incrementing autograd's version counter.
    for (const Result& result : results_) result.device.variable_data().copy_(result.host);
    results_.clear();
  }

 private:
  Work work_;
  std::vector<Result> results_;
};

Work StagedCommunicator::start(std::span<const Operation> operations) {
  std::vector<Operation> on_host(operations.begin(), operations.end());
  std::vector<Staged::Result> results;
  for (Operation& each : on_host) {
    if (each.output.defined()) {
      const at::Tensor on_device = each.output;
      // A tensor that is both read and written is copied to the host too.
      each.output = each.input.defined() || each.kind == OperationKind::kRecv ? host_like(on_device)
                                                                              : to_host(on_device);
      results.push_back({on_device, each.output});
    }
    if (each.input.defined()) each.input = to_host(each.input);
  }
  return Work(std::make_shared<Staged>(inner_->start(on_host), std::move(results)));
}

std::unique_ptr<Communicator> StagedCommunicator::split(int color, int key) {
  return std::make_unique<StagedCommunicator>(inner_->split(color, key), device_);
}

}  // namespace tessera::testing
