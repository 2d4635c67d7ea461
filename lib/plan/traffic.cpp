#include "lib/plan/traffic.h"

#include "lib/plan/rules.h"
#include "lib/plan/wire.h"

namespace tessera {

void add_traffic(const LayoutPlan& plan, const Stage& stage, double gathered, LayoutCost& cost) {
  const Dtypes d(plan.parallel.precision);
  const double trained = stage.trained();
  const double reductions = shards_gradients(plan) ? static_cast<double>(plan.accumulation) : 1;
  const int shards = layout_shards(plan);
  double& sent = cost.comm_bytes_per_step;
  if (shards == 1) {
    sent += 2 * d.reduce * trained * ring(plan.mesh.data);
  } else {
    double published = trained;
    if (gathers(plan)) {
      published = 0;
      for (const PlannedUnit& unit : stage.units) {
        if (!unit.frozen) published += static_cast<double>(unit.resident());
      }
    }
    sent += reductions * d.reduce * trained * ring(shards);
    sent += d.parameter * (published + gathered) * ring(shards);
    sent += 2 * d.reduce * trained / shards * ring(plan.mesh.data / shards);  // over the replicas
  }
  for (const PlannedUnit& unit : stage.units) {  // stages sum a tied gradient
    if (!unit.frozen) {
      sent += 2 * ring(unit.stages) * d.reduce * static_cast<double>(unit.layout.shard_numel());
    }
  }
  sent += 2 * ring(plan.mesh.tensor) * d.reduce * late_elements(plan, stage);
  const double element = d.parameter * plan.activation_elements;
  const int tensor = plan.mesh.tensor;
  const bool split = plan.parallel.sequence_parallel;
  sent += static_cast<double>(stage.messages) * element / (split ? tensor : 1);
  // Two sums of activations a layer and direction, one for the embedding and the head's input; the
  // loss gathers two fp32 numbers a row. Stages that share the ends take the head's input from one
  // of them, and the gradient of the embedding's output.
  const auto layers = static_cast<double>(stage.forwards.layers);
  const auto backward_layers = static_cast<double>(stage.backwards.layers);
  const auto embeddings = static_cast<double>(stage.forwards.embedding);
  const auto heads = static_cast<double>(stage.forwards.head);
  const int ends = end_ranks(plan);
  sent += 2 * ring(tensor) * (2 * layers + 2 * backward_layers) * element;
  sent +=
      2 * ring(ends) * (embeddings + heads) * element + heads * (ends - 1) * 2 * 4 * plan.tokens;
  sent += static_cast<double>(stage.broadcasts) * element;
  // Inputs of layers gathered again for their weights' gradients.
  if (split) sent += ring(tensor) * 2 * backward_layers * element;
}

}  // namespace tessera
