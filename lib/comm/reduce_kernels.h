// SPDX-License-Identifier: MIT
#pragma once
// Element-wise reductions in host memory, for transports that reduce themselves.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

#include "tessera/comm/communicator.h"

namespace tessera {

// Reduces elements [begin, begin + count) of all inputs in their order, and writes the result to
// every output at its own offset. fp16 and bf16 accumulate in fp32 and round once; integers wrap;
// max and min propagate NaN. An output may alias an input at the same offset.
struct ReduceInput {
  const void* data;
  int64_t begin;
};
struct ReduceOutput {
  void* data;
  int64_t begin;
};
void reduce_elements(at::ScalarType dtype, ReduceOp op, std::span<const ReduceInput> inputs,
                     std::span<const ReduceOutput> outputs, int64_t count);

}  // namespace tessera
