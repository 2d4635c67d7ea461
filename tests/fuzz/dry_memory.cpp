// SPDX-License-Identifier: MIT
#include "tests/fuzz/dry_memory.h"

#include "lib/plan/dry_run.h"
#include "lib/testing/fuzz_run.h"
#include "tessera/core/error.h"

namespace tessera::testing {

std::string compare_with_dry_run(const FuzzCase& c, const ModelSpec& model, int rank,
                                 const StrategyMemory& memory) {
  const DryRun run({.model = model,
                    .parallel = c.parallel,
                    .optimizer = optimizer_of(c),
                    .mesh = c.mesh,
                    .coordinate = coordinate_of(rank, c.mesh),
                    .micro_batches = {}});
  const StrategyMemory dry = run.strategy().memory();
  std::string text;
  const auto compare = [&](const char* what, int64_t held, int64_t expected) {
    if (held == expected) return;
    text += concat(text.empty() ? "" : "; ", what, " is ", held, ", a dry run says ", expected);
  };
  compare("parameter_bytes", memory.parameter_bytes, dry.parameter_bytes);
  compare("gradient_bytes", memory.gradient_bytes, dry.gradient_bytes);
  compare("optimizer_bytes", memory.optimizer_bytes, dry.optimizer_bytes);
  // A bucket of fewer elements than ranks grows in the first step.
  const bool grows = c.parallel.bucket_bytes < c.mesh.sharding() * int64_t{sizeof(float)};
  if (!grows) compare("buffer_bytes", memory.buffer_bytes, dry.buffer_bytes);
  // Buffers of activations are made by steps.
  compare("host_bytes", memory.host_bytes - memory.host_activation_bytes, dry.host_bytes);
  return text;
}

}  // namespace tessera::testing
