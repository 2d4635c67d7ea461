// SPDX-License-Identifier: MIT
#include "lib/run/layout.h"

#include <algorithm>
#include <utility>

#include "lib/run/optimizer.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"
#include "tessera/models/block_times.h"
#include "tessera/plan/dry_step.h"

namespace tessera::programs {

ParallelConfig parallel_config(const Prepared& run, const TrainOptions& o) {
  ParallelConfig config = parallel_config(o);
  if (o.axes.balance == StageBalance::kTime || o.axes.balance == StageBalance::kMeasured) {
    config.pipeline.block_costs = block_times(run.model, run.supervised_share);
  }
  return before_fp8_choice(std::move(config));
}

ParallelConfig before_fp8_choice(ParallelConfig config) {
  if (config.precision.fp8 == Fp8::kAuto) config.precision.fp8 = Fp8::kTensorwise;
  return config;
}

PlannedLayout planned_layout(const ModelSpec& model, const ParallelConfig& config,
                             const TrainOptions& o, int world_size) {
  return {.parallel = config,
          .mesh = mesh_extents(o, world_size),
          .accumulation = o.training.gradient_accumulation_steps,
          .model = model,
          .optimizer = optimizer_of(o.training)};
}

PlannedLayout planned_layout(const Prepared& run, const TrainOptions& o, int world_size) {
  PlannedLayout layout = planned_layout(run.model, parallel_config(run, o), o, world_size);
  layout.saves_frozen = !run.adapter;
  return layout;
}

BatchShape batch_shape(int64_t rows, int64_t length, bool packed) {
  constexpr int64_t kTokens = int64_t{1} << 30;
  check(rows <= kTokens / length, ErrorCode::kInvalidArgument, "a micro-batch of ", rows,
        " rows of ", length, " tokens is too large; 2^30 tokens are the most");
  BatchShape shape{.rows = rows, .length = length};
  if (packed) {
    shape.packed.assign(static_cast<size_t>(rows), length);
    shape.sequence = length;
  }
  return shape;
}

BatchShape batch_shape(const Prepared& run, const TrainOptions& o, int64_t length) {
  const int64_t rows = o.training.per_device_train_batch_size;
  BatchShape shape = batch_shape(rows, length, o.data.packing);
  if (run.task == Task::kClassification) {
    shape.labels = rows;
    shape.masked = !run.config().pad_token;
  }
  return shape;
}

BetweenSteps between_steps(const Prepared& run, const TrainOptions& o, int64_t evaluated) {
  BetweenSteps between;
  const bool has_file = !o.data.validation_file.empty() || !o.data.validation_ids.empty();
  if (!has_file || o.output.eval_steps.is_never()) return between;
  TrainOptions evaluation = o;
  evaluation.training.per_device_train_batch_size = o.training.per_device_eval_batch_size;
  between.evaluation = batch_shape(run, evaluation, evaluated);
  if (!o.output.generation) return between;
  // Prompts leave room for their answers.
  const int64_t rows = o.training.per_device_eval_batch_size, tokens = o.data.max_seq_length;
  between.generation = {.rows = rows,
                        .length = std::max<int64_t>(1, tokens - o.output.generation_max_new_tokens),
                        .head_rows = rows,
                        .capacity = tokens};
  return between;
}

std::vector<MemoryPlan> plan_or_warn(const PlannedLayout& layout, const BatchShape& batch,
                                     const Card& card, const BetweenSteps& between) {
  try {
    return memory_plan(layout, batch, card, between);
  } catch (const NotDry& error) {
    const std::string what = error.what();
    if (log_rank() <= 0) {
      log(LogLevel::kWarning, "memory is not planned: ", what.substr(0, what.find(". ")));
    }
    return {};
  }
}

int64_t bytes_sent(const DeviceMesh& mesh, const Strategy& strategy) {
  const bool shares_rows = mesh.extent(Axis::kContext) > 1;
  const int64_t sharding = shares_rows ? mesh.sharding().bytes_sent() : 0;
  const bool owns = mesh.extent(Axis::kExpert) > 1;
  const int64_t expert =
      owns ? mesh.axis(Axis::kExpert).bytes_sent() + mesh.expert_holders()->bytes_sent() : 0;
  return expert + strategy.extra_bytes_sent() + mesh.axis(Axis::kPipeline).bytes_sent() +
         mesh.axis(Axis::kData).bytes_sent() + mesh.axis(Axis::kTensor).bytes_sent() +
         mesh.axis(Axis::kContext).bytes_sent() + sharding;
}

}  // namespace tessera::programs
