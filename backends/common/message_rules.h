// SPDX-License-Identifier: MIT
#pragma once
// Parts of ShardingRules from a configuration.
#include <c10/core/ScalarType.h>

#include "lib/sharding/messages.h"
#include "tessera/backends/parallel_config.h"

namespace tessera {

// ranks: over which parameters are gathered or, if none are, gradients reduced.
inline int64_t message_numel(const ParallelConfig& config, int ranks) {
  return message_numel(config.coalesce_bytes, ranks,
                       static_cast<int64_t>(c10::elementSize(config.precision.parameter)));
}

// Layers whose weights are gathered as codes. Offloaded updates arrive block by block, after the
// first gathers of a step, and a scale needs all parts of a matrix; so do those of one rank alone,
// which moves nothing.
inline Fp8Layers coded_layers(const ParallelConfig& config, int shards) {
  const bool codes = config.fp8_all_gather && config.precision.fp8 == Fp8::kTensorwise &&
                     config.offload.what == Offload::kNone && shards > 1;
  return codes ? fp8_layers_of(config.precision.fp8_layers) : ShardingRules{}.coded_layers;
}

}  // namespace tessera
