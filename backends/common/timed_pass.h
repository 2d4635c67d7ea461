// SPDX-License-Identifier: MIT
#pragma once
// A block's passes on the clock, for choices that are measured.
#include <ATen/core/Tensor.h>

#include <memory>

#include "tessera/model/block.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// The block with weights of a dtype, and gradients of those that are trained.
std::unique_ptr<Block> build_for_timing(const BlockBuilder& builder, const BuildContext& context,
                                        at::ScalarType dtype);

struct TimedPass {
  double seconds = 0;
  at::Tensor output;  // detached
};

// Forward and backward of one micro-batch, waited for. hidden: undefined for a first block.
TimedPass timed_pass(Block& block, const at::Tensor& hidden, const MicroBatch& micro_batch,
                     const BlockContext& context, at::Device device);

}  // namespace tessera
