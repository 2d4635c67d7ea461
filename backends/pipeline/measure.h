// SPDX-License-Identifier: MIT
#pragma once
// What the blocks of a model cost on the machine at hand: for PipelineConfig::block_costs.
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// Seconds of forward and backward of each block for one micro-batch on comm.device() in the given
// dtype, the mean over the ranks of comm and thus the same on all of them (collective). Blocks are
// built one at a time with context; one that has the same BlockCost and input shape as an earlier
// one is not built, it gets that one's time. Takes a few runs of each block: call it once, before
// make_strategy().
std::vector<double> measure_block_costs(const ModelSpec& model, const BuildContext& context,
                                        at::ScalarType dtype, const MicroBatch& micro_batch,
                                        Communicator& comm);

}  // namespace tessera
