// SPDX-License-Identifier: MIT
#include "backends/common/step_graph_runner.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/profiler/api.h>

#include <memory>
#include <utility>

#include "backends/common/parameter_visits.h"
#include "lib/core/gradient_columns.h"
#include "lib/core/switch.h"
#include "lib/core/trace.h"
#include "tessera/core/phase_clock.h"

namespace tessera {

bool StepGraphRunner::can_record(const Parts& parts) {
  const bool wanted = is_on_in_environment("TESSERA_CUDA_GRAPH", /*where_not_set=*/true);
  return wanted && parts.ranks.data.device().is_cuda() && parts.ranks.world->size() == 1 &&
         parts.model.all_recordable(/*training=*/true) && parts.model.has_loss &&
         parts.parameters.records() && parts.gradients.records();
}

void StepGraphRunner::run_eagerly(MicroBatchRun& run) {
  parts_.blocks.forward(run);
  parts_.blocks.backward(run);
}

void StepGraphRunner::run(MicroBatchRun run) {
  const MicroBatch& batch = run.micro_batch;
  // Under a profiler kernels belong to the operations that launch them.
  const bool watched =
      torch::autograd::AnomalyMode::is_enabled() || torch::profiler::impl::profilerEnabled();
  const bool recorded = !watched && !batch.packed.defined() && batch.extra.empty() &&
                        DeviceGraph::can_record(parts_.ranks.data.device());
  if (!recorded) return run_eagerly(run);
  const bool adds = parts_.gradients.begun();
  if (adds) parts_.gradients.settle();
  complete_all(parts_.optimizer, parts_.model.units.size());
  MicroBatchRun recording;
  StepGraphs::Work work;
  work.forward = [&](const StepGraph& graph) {
    recording = parts_.make_run();
    recording.context.seed = run.context.seed;
    recording.context.fp8_weights = nullptr;  // a graph serves later steps too
    recording.context.gradient_columns->seeds = graph.seeds;
    return capture_forward(recording, graph);
  };
  work.backward = [&] {
    parts_.blocks.backward(recording);
    parts_.gradients.settle();
  };
  work.undo = [&] {
    recording = {};
    if (!adds) parts_.gradients.set_begun(false);
  };
  const StepGraphs::Key key = StepGraphs::key_of(batch, run.context, adds);
  if (const StepGraph* graph = graphs_.graph_for(key, batch, work)) {
    return replay(*graph, run);
  }
  graphs_.run_eagerly(key, [&] { run_eagerly(run); });
}

// Returns the loss sums. Gradients are completed outside the graph, so that all micro-batches of a
// step are equal.
at::Tensor StepGraphRunner::capture_forward(MicroBatchRun& run, const StepGraph& graph) {
  run.micro_batch = graph.inputs;
  run.last_micro_batch = false;
  const at::Tensor sums = std::exchange(parts_.step.sums, {});
  const at::Tensor gradient = std::exchange(parts_.step.loss_gradient, graph.loss_gradient);
  const auto restore = [&] {
    parts_.step.loss_gradient = gradient;
    return std::exchange(parts_.step.sums, sums);
  };
  try {
    parts_.blocks.forward(run);
  } catch (...) {
    restore();
    throw;
  }
  return restore();
}

void StepGraphRunner::replay(const StepGraph& graph, const MicroBatchRun& run) {
  const at::NoGradGuard no_grad;
  for (size_t unit = 0; unit < parts_.model.units.size(); ++unit) {
    parts_.parameters.acquire(unit);
    parts_.parameters.release(unit);
  }
  {
    const TraceRange range("forward");
    const PhaseScope phase(Phase::kForward);
    graph.take(run.micro_batch, run.context.seed, parts_.scale.loss_gradient());
    graph.forward->run();
    parts_.step.sums =
        parts_.step.sums.defined() ? parts_.step.sums + graph.sums : graph.sums.clone();
  }
  const TraceRange range("backward");
  const PhaseScope phase(Phase::kBackward);
  graph.backward->run();
  graphs_.ran(graph);
  parts_.gradients.set_begun(true);
  if (run.last_micro_batch) parts_.gradients.complete_all();
}

}  // namespace tessera
