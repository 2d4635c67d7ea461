// SPDX-License-Identifier: MIT
#pragma once
#include "tessera/backends/parallel_config.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// Marks the blocks of config.recomputed_blocks (BlockBuilder::recomputed). Throws
// Error(kInvalidArgument) for an invalid index or the loss block's.
void mark_recomputed(const ParallelConfig& config, ModelSpec& model);

}  // namespace tessera
