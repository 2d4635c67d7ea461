// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Partition of a model's blocks into pipeline stages.
#include <cstddef>
#include <string>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/model/model_spec.h"

namespace tessera {

/// Splits costs.size() blocks into `parts` contiguous, non-empty parts; returns the block count of
/// each. Minimises the most expensive part, then the sum of squared costs. Ties: fewer blocks in
/// the first parts, whose stages hold most micro-batches. Exact: O(blocks^2 * parts). If all costs
/// are zero, blocks count equally.
std::vector<size_t> balanced_split(const std::vector<double>& costs, size_t parts);

/// balanced_split() for gpipe, where all forwards end before the first backward. Minimises the
/// slowest part's forward plus the slowest part's backward; ties: the cheapest maximum. forward:
/// its share of a block's cost, between 0 and 1. The loss block runs its backward in forward, too.
/// O(blocks^3 * parts).
std::vector<size_t> two_phase_split(const std::vector<double>& costs, size_t parts, double forward);

/// Forward's share of a block's cost: 1/3, and 1/4 where backward recomputes the block.
double forward_share(bool recompute);

/// The cost of every block: config.block_costs when given, else by config.balance ("flops",
/// "parameters"). Recomputation multiplies flops and measured costs of all blocks but the loss by
/// 4/3. Throws Error(kInvalidArgument) for other names and for costs that do not fit the model.
std::vector<double> block_costs(const ModelSpec& model, const PipelineConfig& config,
                                bool recompute = false);

/// Contiguous blocks of the model.
struct ModelPart {
  size_t first = 0, count = 0;  ///< blocks of the model: [first, first + count)
  double cost = 0;              ///< sum of the blocks' costs, in the unit of block_costs()
};
/// The stages * chunks parts in model order; part p lies on stage p % stages. With a shared
/// vocabulary they exclude the first and the last block, whose costs all stages bear equally. gpipe
/// balanced by time uses two_phase_split(). Throws Error(kInvalidArgument) for more parts than
/// blocks, and when embedding and head cannot be shared.
std::vector<ModelPart> partition(const ModelSpec& model, const PipelineConfig& config, int stages,
                                 bool recompute = false);

}  // namespace tessera
