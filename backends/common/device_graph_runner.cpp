// SPDX-License-Identifier: MIT
#include "backends/common/device_graph_runner.h"

#include <ATen/ATen.h>

#include <exception>
#include <string_view>

#include "lib/core/device_reserve.h"
#include "lib/core/switch.h"
#include "lib/ops/gemm_autotune.h"
#include "tessera/core/device.h"
#include "tessera/core/log.h"

namespace tessera {

DeviceGraphRunner::DeviceGraphRunner(at::Device device, int64_t runs)
    : device_(device),
      may_record_(device.is_cuda() && runs >= kLeastRuns &&
                  is_on_in_environment("TESSERA_CUDA_GRAPH", /*where_not_set=*/true)) {}

DeviceGraphRunner::~DeviceGraphRunner() {
  result_.reset();
  graph_.reset();
  if (pool_) give_back(*pool_);
}

at::Tensor DeviceGraphRunner::run(const std::vector<at::Tensor>& inputs, const Work& work) {
  if (!may_record_) return work();
  std::vector<const void*> given;
  for (const at::Tensor& input : inputs) given.push_back(input.const_data_ptr());
  const bool same = given == inputs_;
  if (!same && is_recorded()) return work();
  inputs_ = std::move(given);
  if (!same || !DeviceGraph::can_record(device_)) return run_eagerly(work);
  if (!is_recorded() && settled_) record(work);
  if (!is_recorded()) return run_eagerly(work);
  graph_->run();
  count_as_peak(device_, bytes_);
  return result_;
}

at::Tensor DeviceGraphRunner::run_eagerly(const Work& work) {
  const int64_t trials = ops::products_in_tuning();
  at::Tensor result;
  bytes_ = peak_allocated(device_, [&] { result = work(); });
  settled_ = ++runs_ > 1 && ops::products_in_tuning() == trials;
  return result;
}

void DeviceGraphRunner::record(const Work& work) {
  if (device_memory(device_).first < 2 * bytes_) {
    may_record_ = false;
    return;
  }
  pool_ = make_graph_pool(device_);
  try {
    bytes_ = peak_allocated(device_, [&] {
      graph_ = std::make_unique<DeviceGraph>(*pool_, [&] { result_ = work(); });
    });
  } catch (const std::exception& error) {
    may_record_ = false;
    result_.reset();
    const std::string_view reason = error.what();  // LibTorch's continues with the call stack
    log(LogLevel::kDebug, "one more token of rows cannot be recorded and runs kernel by kernel: ",
        reason.substr(0, reason.find('\n')));
  }
}

}  // namespace tessera
