// SPDX-License-Identifier: MIT
// CUDA graphs of micro-batches ([Note: recorded micro-batches]).
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/profiler/api.h>

#include <memory>
#include <utility>

#include "backends/common/attached_model.h"
#include "backends/common/process_groups.h"
#include "backends/common/step_graphs.h"
#include "backends/common/step_state.h"
#include "lib/core/gradient_columns.h"
#include "lib/core/switch.h"
#include "lib/core/trace.h"
#include "tessera/backends/sharding_strategy.h"
#include "tessera/core/phase_clock.h"

namespace tessera {
// Work that involves other ranks or the host is never captured.
std::unique_ptr<StepGraphs> ShardingStrategy::make_graphs() const {
  const at::Device device = data().device();
  const bool alone = ranks_->world->size() == 1 && !placement_;
  const bool wanted = is_on_in_environment("TESSERA_CUDA_GRAPH", /*where_not_set=*/true);
  if (!wanted || !device.is_cuda() || !alone || !model_->all_recordable(/*training=*/true) ||
      !model_->has_loss || !parameters_->records() || !gradients_->records()) {
    return nullptr;
  }
  return std::make_unique<StepGraphs>(device);
}

void ShardingStrategy::run_micro_batch(MicroBatchRun run) {
  const MicroBatch& batch = run.micro_batch;
  // Under a profiler kernels belong to the operations that launch them.
  const bool watched =
      torch::autograd::AnomalyMode::is_enabled() || torch::profiler::impl::profilerEnabled();
  const bool recorded = graphs_ != nullptr && !watched && !batch.packed.defined() &&
                        batch.extra.empty() && DeviceGraph::can_record(data().device());
  if (!recorded) {
    forward(run);
    return backward(run);
  }
  const bool adds = gradients_->begun();
  if (adds) gradients_->settle();
  complete_all_units();
  MicroBatchRun recording;
  StepGraphs::Work work;
  work.forward = [&](const StepGraph& graph) {
    recording = make_run(0, 0, block_count());
    recording.context.seed = run.context.seed;
    recording.context.gradient_columns->seeds = graph.seeds;
    return forward_recording(recording, graph);
  };
  work.backward = [&] {
    backward(recording);
    gradients_->settle();
  };
  work.undo = [&] {
    recording = {};
    if (!adds) gradients_->set_begun(false);
  };
  const StepGraphs::Key key = StepGraphs::key_of(batch, run.context, adds);
  if (const StepGraph* graph = graphs_->graph_for(key, batch, work)) {
    return run_recorded(*graph, run);
  }
  graphs_->run_eagerly(key, [&] {
    forward(run);
    backward(run);
  });
}

// Returns the loss sums. Gradients are completed outside the graph, so that all micro-batches of a
// step are equal.
at::Tensor ShardingStrategy::forward_recording(MicroBatchRun& run, const StepGraph& graph) {
  run.micro_batch = graph.inputs;
  run.last_micro_batch = false;
  const at::Tensor sums = std::exchange(step_->sums, {});
  const at::Tensor gradient = std::exchange(step_->loss_gradient, graph.loss_gradient);
  const auto restore = [&] {
    step_->loss_gradient = gradient;
    return std::exchange(step_->sums, sums);
  };
  try {
    forward(run);
  } catch (...) {
    restore();
    throw;
  }
  return restore();
}

void ShardingStrategy::run_recorded(const StepGraph& graph, const MicroBatchRun& run) {
  const at::NoGradGuard no_grad;
  for (size_t unit = 0; unit < units().size(); ++unit) {
    parameters_->acquire(unit);
    parameters_->release(unit);
  }
  {
    const TraceRange range("forward");
    const PhaseScope phase(Phase::kForward);
    graph.take(run.micro_batch, run.context.seed, loss_gradient());
    graph.forward->run();
    step_->sums = step_->sums.defined() ? step_->sums + graph.sums : graph.sums.clone();
  }
  const TraceRange range("backward");
  const PhaseScope phase(Phase::kBackward);
  graph.backward->run();
  graphs_->ran(graph);
  gradients_->set_begun(true);
  if (run.last_micro_batch) gradients_->complete_all();
}

}  // namespace tessera
