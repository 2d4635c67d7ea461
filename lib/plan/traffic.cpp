// SPDX-License-Identifier: MIT
#include "lib/plan/traffic.h"

#include <algorithm>
#include <utility>

#include "lib/plan/rules.h"
#include "lib/plan/wire.h"
#include "lib/sharding/two_part_tables.h"

namespace tessera {

void add(LayoutCost& cost, Traffic traffic) {
  if (traffic.bytes <= 0) return;
  cost.comm_bytes_per_step += traffic.bytes;
  cost.traffic.push_back(std::move(traffic));
}

namespace {

// What ranks gather of the second part of tables that are summed in two.
void add_rows(const LayoutPlan& plan, const Stage& stage, int ranks, LayoutCost& cost) {
  const PrecisionConfig& precision = plan.parallel.precision;
  if (precision.gradient_dtype() != precision.parameter ||
      precision.reduce_dtype() != precision.parameter) {
    return;
  }
  for (const PlannedUnit& unit : stage.units) {
    if (!unit.ends_with_rows) continue;
    if (!sums_in_two_parts(unit.layout, precision.parameter, plan.on_gpu)) continue;
    const auto columns = static_cast<double>(unit.layout.entries().front().shape[1]);
    add(cost, {"rows of the embedding's gradient", "all-gather", Axis::kData, ranks,
               (ranks - 1) * plan.tokens * (columns * Dtypes(precision).parameter + 8)});
  }
}

void add_data_axis(const LayoutPlan& plan, const Stage& stage, double gathered, LayoutCost& cost) {
  const Dtypes d(plan.parallel.precision);
  const double trained = stage.trained();
  const ShardingRules rules = rules_of(plan);
  const double reductions = rules.shards_gradients ? static_cast<double>(plan.accumulation) : 1;
  const int shards = rules.shards, data = plan.mesh.data;
  if (shards == 1) {
    add(cost, {"gradients", "all-reduce", Axis::kData, data, 2 * d.reduce * trained * ring(data)});
    add_rows(plan, stage, data, cost);
    return;
  }
  double published = trained;
  if (rules.gathers_parameters) {
    published = 0;
    for (const PlannedUnit& unit : stage.units) {
      if (!unit.frozen) published += static_cast<double>(unit.resident());
    }
  }
  const int replicas = data / shards;
  add(cost, {"gradients", "reduce-scatter", Axis::kData, shards,
             reductions * d.reduce * trained * ring(shards)});
  add_rows(plan, stage, shards, cost);
  add(cost, {"parameters", "all-gather", Axis::kData, shards,
             d.parameter * (published + gathered) * ring(shards)});
  add(cost, {"gradients of replicas", "all-reduce", Axis::kData, replicas,
             2 * d.reduce * trained / shards * ring(replicas)});
}

// Stages sum a tied gradient.
void add_tied(const LayoutPlan& plan, const Stage& stage, LayoutCost& cost) {
  const Dtypes d(plan.parallel.precision);
  Traffic traffic{"tied gradients", "all-reduce", Axis::kPipeline};
  for (const PlannedUnit& unit : stage.units) {
    if (unit.frozen) continue;
    traffic.ranks = std::max(traffic.ranks, unit.stages);
    traffic.bytes +=
        2 * ring(unit.stages) * d.reduce * static_cast<double>(unit.layout.shard_numel());
  }
  add(cost, traffic);
}

// Two sums of activations a layer and direction, one for the embedding and the head's input; the
// loss gathers two fp32 numbers a row. Stages that share the ends take the head's input from one of
// them, and the gradient of the embedding's output.
void add_activations(const LayoutPlan& plan, const Stage& stage, LayoutCost& cost) {
  const double element = Dtypes(plan.parallel.precision).parameter * plan.activation_elements;
  const int tensor = plan.mesh.tensor, ends = end_ranks(plan);
  const bool split = plan.parallel.sequence_parallel;
  const Axis of_ends = plan.parallel.pipeline.shared_vocabulary ? Axis::kPipeline : Axis::kTensor;
  const auto layers = static_cast<double>(stage.forwards.layers);
  const auto backward_layers = static_cast<double>(stage.backwards.layers);
  const auto embeddings = static_cast<double>(stage.forwards.embedding);
  const auto heads = static_cast<double>(stage.forwards.head);
  add(cost, {"activations", "send", Axis::kPipeline, plan.mesh.pipeline,
             static_cast<double>(stage.messages) * element / (split ? tensor : 1)});
  add(cost, {"layers", split ? "all-gather, reduce-scatter" : "all-reduce", Axis::kTensor, tensor,
             2 * ring(tensor) * (2 * layers + 2 * backward_layers) * element});
  add(cost, {"embedding and head", "all-reduce", of_ends, ends,
             2 * ring(ends) * (embeddings + heads) * element});
  add(cost, {"loss", "all-gather", of_ends, ends, heads * (ends - 1) * 2 * 4 * plan.tokens});
  add(cost, {"ends of the model", "broadcast", Axis::kPipeline, plan.mesh.pipeline,
             static_cast<double>(stage.broadcasts) * element});
  // Inputs of layers gathered again for their weights' gradients.
  if (!split) return;
  add(cost, {"inputs of layers", "all-gather", Axis::kTensor, tensor,
             ring(tensor) * 2 * backward_layers * element});
}

}  // namespace

void add_traffic(const LayoutPlan& plan, const Stage& stage, double gathered, LayoutCost& cost) {
  add_data_axis(plan, stage, gathered, cost);
  add_tied(plan, stage, cost);
  add(cost, {"gradients of norms", "all-reduce", Axis::kTensor, plan.mesh.tensor,
             2 * ring(plan.mesh.tensor) * Dtypes(plan.parallel.precision).reduce *
                 late_elements(plan, stage)});
  add_activations(plan, stage, cost);
}

}  // namespace tessera
