// SPDX-License-Identifier: MIT
#include "backends/common/recomputation.h"

#include "tessera/core/error.h"

namespace tessera {

void mark_recomputed(const ParallelConfig& config, ModelSpec& model) {
  const size_t count = model.block_count() - (model.has_loss ? 1 : 0);
  for (const int64_t block : config.recomputed_blocks) {
    check(block >= 0 && static_cast<size_t>(block) < count, ErrorCode::kInvalidArgument,
          "recomputed_blocks names block ", block, ", and model ", model.name, " has ", count,
          " blocks", model.has_loss ? " before its loss" : "", "; they count from 0");
    model.blocks[static_cast<size_t>(block)].recomputed = true;
  }
}

}  // namespace tessera
