// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Estimated times of a language model's blocks on a GPU.
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera {

/// Time of every block per token, forward and backward, for PipelineConfig::block_costs, in FLOPs
/// of matrix products. Adds memory traffic, proportional to a layer's columns and the head's
/// logits, so layers cost more relative to the head than by FLOPs. Fitted to bloom-560m, bloom-3b
/// and llama-3.2-1b in 16 bits with 2,048 to 8,192 tokens on an H200. supervised_share: share of
/// positions for which the head runs. FLOPs alone for a model without ModelSpec::flops_per_token.
std::vector<double> block_times(const ModelSpec& model, double supervised_share);

}  // namespace tessera
