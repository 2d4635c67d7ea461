// SPDX-License-Identifier: MIT
#include "tessera/backends/data_parallel/ddp.h"

#include "backends/common/message_rules.h"

namespace tessera {

ShardingRules Ddp::rules(const ParallelConfig& config, int ranks) {
  return {.message_numel = message_numel(config, ranks)};
}

}  // namespace tessera
