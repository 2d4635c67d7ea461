// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What the blocks of a language model take beside each other on a GPU.
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera {

/// For PipelineConfig::block_costs: the time of every block for one token, forward and backward, in
/// floating-point operations of its matrix products. What else it does moves memory: a layer so
/// many numbers a column, the head so many a logit, which is why a layer takes longer beside the
/// head than its operations say. Fitted to bloom-560m, bloom-3b and llama-3.2-1b in 16 bits with
/// 2,048 to 8,192 tokens on an H200. supervised_share: of the positions, those that the head
/// computes. The operations alone for a model without ModelSpec::flops_per_token.
std::vector<double> block_times(const ModelSpec& model, double supervised_share);

}  // namespace tessera
