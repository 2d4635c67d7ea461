// SPDX-License-Identifier: MIT
#include "tessera/backends/data_parallel/ddp.h"

namespace tessera {

ShardingRules Ddp::rules(const ParallelConfig&, int /*ranks*/) { return {}; }

}  // namespace tessera
