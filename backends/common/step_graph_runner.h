// SPDX-License-Identifier: MIT
#pragma once
// Forward and backward of a micro-batch as CUDA graphs ([Note: recorded micro-batches]).
#include <functional>

#include "backends/common/attached_model.h"
#include "backends/common/block_runner.h"
#include "backends/common/gradient_scale.h"
#include "backends/common/process_groups.h"
#include "backends/common/step_graphs.h"
#include "backends/common/step_state.h"
#include "tessera/backends/micro_batch_run.h"
#include "tessera/backends/unit_optimizer.h"
#include "tessera/sharding/gradient_store.h"
#include "tessera/sharding/parameter_store.h"

namespace tessera {

// Runs the training micro-batches of one ShardingStrategy: from a graph where their shape has one,
// otherwise by its BlockRunner.
class StepGraphRunner {
 public:
  // Inputs; all outlive the object.
  struct Parts {
    const AttachedModel& model;
    const ProcessGroups& ranks;
    ParameterStore& parameters;
    GradientStore& gradients;
    UnitOptimizer& optimizer;
    StepState& step;
    BlockRunner& blocks;
    GradientScale& scale;
    std::function<MicroBatchRun()> make_run;  // of the step's first micro-batch, all blocks
  };
  // Whether the work can be captured at all: none of it involves other ranks or the host.
  static bool can_record(const Parts& parts);
  explicit StepGraphRunner(const Parts& parts)
      : parts_(parts), graphs_(parts.ranks.data.device()) {}

  // Forward and backward.
  void run(MicroBatchRun run);
  // Frees all graphs.
  void clear() { graphs_.clear(); }

 private:
  void run_eagerly(MicroBatchRun& run);
  at::Tensor capture_forward(MicroBatchRun& run, const StepGraph& graph);
  void replay(const StepGraph& graph, const MicroBatchRun& run);

  const Parts parts_;
  StepGraphs graphs_;
};

}  // namespace tessera
