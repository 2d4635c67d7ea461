// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Which blocks of a model go to which stage of a pipeline.
#include <cstddef>
#include <string>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/model/model_spec.h"

namespace tessera {

/// Splits costs.size() blocks into `parts` contiguous ones of at least one block so that the most
/// expensive part is as cheap as can be, and among those splits the costs differ least (smallest
/// sum of squares); of equals the one with fewer blocks in the first parts, whose stages hold most
/// micro-batches. Returns the blocks of each part. Exact: O(blocks^2 * parts). All zero: counts.
std::vector<size_t> balanced_split(const std::vector<double>& costs, size_t parts);

/// The same for gpipe, where all forwards end before the first backward: what the slowest part
/// takes in forward and what the slowest takes in backward add up, and their sum is as small as can
/// be. forward: its share of a block's cost, between 0 and 1; the last block, the loss, has its
/// backward in forward, too. Among equals the most expensive part is the cheapest. O(blocks^3 *
/// parts).
std::vector<size_t> two_phase_split(const std::vector<double>& costs, size_t parts, double forward);

/// Of a block's cost, what forward has: a third, and a quarter where it runs again in backward.
double forward_share(bool recompute);

/// The cost of every block: config.block_costs when given, else what config.balance names ("flops",
/// "parameters"). Recomputation makes time and flops of all blocks but the loss 4/3 of what they
/// are. Throws Error(kInvalidArgument) for other names and for costs that do not fit the model.
std::vector<double> block_costs(const ModelSpec& model, const PipelineConfig& config,
                                bool recompute = false);

/// Contiguous blocks: [first, first + count) of the model.
struct ModelPart {
  size_t first = 0, count = 0;  ///< blocks of the model: [first, first + count)
  double cost = 0;              ///< of its blocks, in the unit of block_costs()
};
/// The stages * chunks parts in the model's order; part p lies on stage p % stages. With a shared
/// vocabulary they are parts of what is between the first and the last block, whose costs all
/// stages bear alike. Under gpipe balanced by time they are two_phase_split()'s. Throws
/// Error(kInvalidArgument) with both numbers when there are more parts than blocks, and when the
/// model's ends cannot be shared.
std::vector<ModelPart> partition(const ModelSpec& model, const PipelineConfig& config, int stages,
                                 bool recompute = false);

}  // namespace tessera
