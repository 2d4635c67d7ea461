// SPDX-License-Identifier: MIT
#include "tests/fuzz/formula.h"

#include "lib/testing/fuzz_run.h"
#include "tessera/core/error.h"
#include "tessera/plan/layout_cost.h"

namespace tessera::testing {

std::string compare_with_formula(const FuzzCase& c, const ModelSpec& model, int stage,
                                 const StrategyMemory& memory) {
  if (c.model == "modules" || c.model == "chain")
    return "";  // adapted modules cannot be built without memory yet
  LayoutPlan plan{
      .parallel = c.parallel, .mesh = c.mesh, .accumulation = c.accumulation, .model = model};
  plan_optimizer(plan, optimizer_of(c));
  const LayoutCost formula = layout_cost(plan, stage);
  std::string text;
  const auto compare = [&](const char* what, int64_t held, double expected) {
    if (static_cast<double>(held) == expected) return;
    text += concat(text.empty() ? "" : "; ", what, " is ", held, ", the formula says ", expected);
  };
  compare("parameter_bytes", memory.parameter_bytes, formula.parameter_bytes);
  compare("gradient_bytes", memory.gradient_bytes, formula.gradient_bytes);
  // The formula is of the data rank that has most: of whole matrices, and of small parameters and
  // embeddings, which keep more and lie at a unit's end.
  const bool small_ones = plan.moments.rules.block > 1 && c.mesh.data > 1;
  const bool ranks_differ = small_ones || c.optimizer == "muon";
  const auto compare_most = [&](const char* what, int64_t held, double most) {
    if (!ranks_differ || static_cast<double>(held) > most) compare(what, held, most);
  };
  compare_most("optimizer_bytes", memory.optimizer_bytes, formula.optimizer_bytes);
  // Norms and adapters lie at a unit's end: the formula is of the data rank that owns most of those
  // whose gradients tensor ranks add up.
  const bool parts_of_sums = (c.model == "qwen3" || c.lora > 0) && c.mesh.tensor > 1;
  const bool by_rank = (c.parallel.sequence_parallel || parts_of_sums) && c.mesh.data > 1;
  // A wire's piece of fewer elements than ranks grows in the first step.
  const bool grows = c.parallel.bucket_bytes < c.mesh.data * int64_t{sizeof(float)};
  if (!grows && (!by_rank || static_cast<double>(memory.buffer_bytes) > formula.buffer_bytes)) {
    compare_most("buffer_bytes", memory.buffer_bytes, formula.buffer_bytes);
  }
  compare_most("host_bytes", memory.host_bytes, formula.host_bytes);
  return text;
}

}  // namespace tessera::testing
