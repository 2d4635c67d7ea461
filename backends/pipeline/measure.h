// SPDX-License-Identifier: MIT
#pragma once
// Measurement of block costs on this machine, for PipelineConfig::block_costs.
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// Seconds of each block's forward and backward for one micro-batch on comm.device() in the given
// dtype. Collective: the mean over comm's ranks, equal on all. Builds blocks one at a time with
// context; a block with an earlier one's BlockCost and input shape gets its time. Runs each block a
// few times: call it once, before make_strategy().
std::vector<double> measure_block_costs(const ModelSpec& model, const BuildContext& context,
                                        at::ScalarType dtype, const MicroBatch& micro_batch,
                                        Communicator& comm);

}  // namespace tessera
