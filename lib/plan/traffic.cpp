#include "lib/plan/traffic.h"

#include "lib/plan/rules.h"

namespace tessera {

void add_traffic(const LayoutPlan& plan, const Stage& stage, double gathered, LayoutCost& cost) {
  const Dtypes d(plan.parallel.precision);
  const double numel = stage.numel();
  const double reductions = shards_gradients(plan) ? static_cast<double>(plan.accumulation) : 1;
  const int shards = layout_shards(plan);
  double& sent = cost.comm_bytes_per_step;
  if (shards == 1) {
    sent += 2 * d.reduce * numel * ring(plan.mesh.data);
  } else {
    sent += reductions * d.reduce * numel * ring(shards);
    const double published = gathers(plan) ? stage.resident() : numel;
    sent += d.parameter * (published + gathered) * ring(shards);
    sent += 2 * d.reduce * numel / shards * ring(plan.mesh.data / shards);  // over the replicas
  }
  for (const PlannedUnit& unit : stage.units) {  // two stages sum a tied gradient
    if (unit.tied_away) sent += d.gradient * static_cast<double>(unit.layout.shard_numel());
  }
  const double element = d.parameter * plan.activation_elements;
  const int tensor = plan.mesh.tensor;
  const bool split = plan.parallel.sequence_parallel;
  sent += static_cast<double>(stage.messages) * element / (split ? tensor : 1);
  // Two sums of activations a layer and direction, one for the embedding and the head's input; the
  // loss gathers two fp32 numbers a row. Stages that share the ends take the head's input from one
  // of them, and the gradient of the embedding's output.
  const auto layers = static_cast<double>(stage.forwards_of_layers);
  const auto embeddings = static_cast<double>(stage.forwards_of_embedding);
  const auto heads = static_cast<double>(stage.forwards_of_head);
  const double backward_layers = plan.parallel.gradient_checkpointing ? layers / 2 : layers;
  const int ends = end_ranks(plan);
  sent += 2 * ring(tensor) * (2 * layers + 2 * backward_layers) * element;
  sent +=
      2 * ring(ends) * (embeddings + heads) * element + heads * (ends - 1) * 2 * 4 * plan.tokens;
  sent += static_cast<double>(stage.broadcasts) * element;
  if (split) {  // inputs of layers gathered again for their weights' gradients; norms' gradients
    sent += ring(tensor) * 2 * backward_layers * element;
    sent += 2 * ring(tensor) * static_cast<double>(plan.accumulation) * d.gradient * stage.whole;
  }
}

}  // namespace tessera
