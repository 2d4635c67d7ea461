// SPDX-License-Identifier: MIT
#pragma once
// The loop over blocks: forward and backward of a micro-batch through a rank's blocks.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "backends/common/activation_offload.h"
#include "backends/common/attached_model.h"
#include "backends/common/step_state.h"
#include "tessera/backends/micro_batch_run.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/unit_optimizer.h"
#include "tessera/sharding/gradient_store.h"
#include "tessera/sharding/parameter_store.h"

namespace tessera {

// Runs blocks of one ShardingStrategy. Around each block it gathers parameters, prefetches those of
// the next blocks, reports gradients to their store, and recomputes or defers as configured. Every
// block runs on a detached leaf and has its own backward call.
class BlockRunner {
 public:
  // Inputs; all outlive the object.
  struct Parts {
    std::string strategy;  // name, for messages
    const AttachedModel& model;
    const ParallelConfig& config;
    ParameterStore& parameters;
    GradientStore& gradients;
    UnitOptimizer& optimizer;
    StepState& step;
    std::function<at::Tensor()> loss_gradient;  // d(objective)/d(loss sum): fp32 scalar
    ActivationOffload* offload = nullptr;       // null: activations stay on the device
  };
  explicit BlockRunner(Parts parts) : parts_(std::move(parts)) {}

  // The loss block's backward follows its forward at once, inside forward().
  void forward(MicroBatchRun& run);
  void backward(MicroBatchRun& run);
  // Computes the weight gradients that blocks have deferred.
  void backward_weights(MicroBatchRun& run);

 private:
  void acquire(const MicroBatchRun& run, size_t block);
  bool decodes(const MicroBatchRun& run, size_t unit) const;
  void prefetch_after(const MicroBatchRun& run, size_t block, size_t end, int direction);
  void release(size_t block);

  at::Tensor forward_block(MicroBatchRun& run, size_t block, const at::Tensor& hidden);
  void forward_loss(MicroBatchRun& run, size_t block, const at::Tensor& hidden);
  at::Tensor forward_scores(const MicroBatchRun& run, const at::Tensor& hidden);
  // Forward that backward repeats, without gradients.
  at::Tensor forward_recomputed(MicroBatchRun& run, size_t block);
  void recompute(MicroBatchRun& run, size_t block);
  // Offloaded activations of a block, see [Note: offloaded activations].
  void send_input(MicroBatchRun& run, size_t block);
  void send_kept(MicroBatchRun& run, size_t block, size_t settled);
  void bring_back(MicroBatchRun& run, size_t block);
  void fetch_before(MicroBatchRun& run, size_t block);
  at::Tensor call_block(const MicroBatchRun& run, size_t index, const at::Tensor& hidden);
  void make_deferred(MicroBatchRun& run, size_t block);

  bool is_loss(size_t block) const;
  bool recomputes(size_t block) const;
  bool comes_back_first(const MicroBatchRun& run, size_t block) const;
  bool defers(const MicroBatchRun& run, size_t block, const at::Tensor& input) const;
  const std::vector<size_t>& trained_units(const MicroBatchRun& run, size_t block) const;

  const Parts parts_;
};

}  // namespace tessera
