// SPDX-License-Identifier: MIT
#pragma once
// A micro-batch's loss in the form of a last block's output.
#include <string>

#include "tessera/core/micro_batch.h"
#include "tessera/model/loss.h"

namespace tessera {

// 1-D fp32: sum, divisor, counters (Block::gives_divisor). A mean without targets is 0, without
// gradient. Throws Error(kInvalidArgument) with the block's name unless loss and divisor are
// scalars (for kNone only the divisor) and the number of counters is right.
at::Tensor loss_sums(const std::string& block, const LossResult& result, LossReduction reduction,
                     int counters, const MicroBatch& micro_batch);

}  // namespace tessera
