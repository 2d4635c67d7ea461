// SPDX-License-Identifier: MIT
#pragma once
// ShardingRules::message_numel from a configuration.
#include <c10/core/ScalarType.h>

#include "lib/sharding/messages.h"
#include "tessera/backends/parallel_config.h"

namespace tessera {

// ranks: over which parameters are gathered or, if none are, gradients reduced.
inline int64_t message_numel(const ParallelConfig& config, int ranks) {
  return message_numel(config.coalesce_bytes, ranks,
                       static_cast<int64_t>(c10::elementSize(config.precision.parameter)));
}

}  // namespace tessera
