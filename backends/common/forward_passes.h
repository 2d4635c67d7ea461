// SPDX-License-Identifier: MIT
#pragma once
// Strategy::forward(): the model as a differentiable function.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backends/common/allocator_reserve.h"
#include "backends/common/attached_model.h"
#include "backends/common/block_runner.h"
#include "backends/common/gradient_scale.h"
#include "backends/common/process_groups.h"
#include "backends/common/replicated_gradient_reducer.h"
#include "backends/common/step_agreement.h"
#include "backends/common/step_state.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/strategy.h"
#include "tessera/sharding/gradient_store.h"

namespace tessera {

// Passes of one ShardingStrategy outside its steps. Their gradients add up until close().
class ForwardPasses {
 public:
  // Inputs; all outlive the object.
  struct Parts {
    std::string strategy;  // name, for messages
    const AttachedModel& model;
    const ParallelConfig& config;
    const ProcessGroups& ranks;
    StepState& step;
    StepAgreement& agreement;
    AllocatorReserve& reserve;
    GradientStore& gradients;
    ReplicatedGradientReducer& replicated;
    BlockRunner& blocks;
    GradientScale& scale;
    const int64_t& weights_version;  // incremented by every change of the weights
    at::Tensor steps_begun;          // int64 host scalar from which seeds follow
    std::function<void()> enter;     // first statement of every collective call
  };
  explicit ForwardPasses(Parts parts) : parts_(std::move(parts)) {}

  at::Tensor forward(const MicroBatch& micro_batch, const ForwardOptions& options);
  // Reduces the gradients of this step's passes over the ranks. Each rank's loss has weight
  // 1 / data ranks. Collective; no effect without such gradients.
  void close();

 private:
  struct Pass;
  class Node;
  std::vector<at::Tensor> backward(Pass& pass, const at::Tensor& gradient);

  const Parts parts_;
};

}  // namespace tessera
