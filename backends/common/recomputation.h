// SPDX-License-Identifier: MIT
#pragma once
#include "tessera/backends/parallel_config.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// Marks what config.recomputed_blocks names (BlockBuilder::recomputed). Throws
// Error(kInvalidArgument) for a place that is none, or the loss block's.
void mark_recomputed(const ParallelConfig& config, ModelSpec& model);

}  // namespace tessera
