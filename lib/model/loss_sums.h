// SPDX-License-Identifier: MIT
#pragma once
// The loss of a micro-batch as a last block returns it.
#include <string>

#include "tessera/core/micro_batch.h"
#include "tessera/model/loss.h"

namespace tessera {

// 1-D fp32: sum, divisor, counters (Block::gives_divisor). A mean without targets is 0 and has no
// gradient. Throws Error(kInvalidArgument), which names the block, unless loss and divisor are
// numbers (of kNone only the divisor) and there are as many counters.
at::Tensor loss_sums(const std::string& block, const LossResult& result, LossReduction reduction,
                     int counters, const MicroBatch& micro_batch);

}  // namespace tessera
