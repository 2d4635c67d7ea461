#include "tessera/plan/activations.h"

#include <algorithm>
#include <cmath>

#include "lib/plan/rules.h"

namespace tessera {

double activation_bytes(const LayoutPlan& plan, const ActivationShape& shape) {
  const double element = Dtypes(plan.parallel.precision).parameter;
  const auto tokens = static_cast<double>(shape.rows * shape.length);
  const auto layers = static_cast<double>(shape.layers), hidden = static_cast<double>(shape.hidden);
  const auto stages = static_cast<double>(plan.mesh.pipeline);
  const auto tensor = static_cast<double>(plan.mesh.tensor);
  const PipelineConfig& pipeline = plan.parallel.pipeline;
  const bool recompute = plan.parallel.gradient_checkpointing;
  const double layer =
      tokens * (17 * hidden * element + static_cast<double>(shape.heads * shape.length) * 4) /
      tensor;
  const double kept = recompute ? tokens * hidden * element : layer;
  const auto micro_batches = static_cast<double>(plan.accumulation);
  const double most = stages + (pipeline.shared_vocabulary ? std::ceil((stages - 1) / 2) : 0);
  const double in_flight = stages == 1                    ? 1
                           : pipeline.schedule == "gpipe" ? micro_batches
                                                          : std::min(micro_batches, most);
  const double chunk = std::min(tokens, 1024.0) * static_cast<double>(shape.vocabulary);
  return in_flight * layers * kept / stages + (recompute ? layer : 0) +
         2 * 4 * chunk / end_ranks(plan);
}

}  // namespace tessera
