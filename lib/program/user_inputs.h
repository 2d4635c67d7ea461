// SPDX-License-Identifier: MIT
#pragma once
// Inputs of a program from a micro-batch.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tessera/core/micro_batch.h"

namespace tessera::program {

struct InputEntry {
  struct Range {
    int64_t least = 0, most = std::numeric_limits<int64_t>::max();
    std::string name = {};  // extents of one name are equal; empty: it is constant
  };
  std::string name;
  std::vector<Range> dims;
};

// The tensor of the micro-batch: extra of this name, or input_ids for the first input, labels, or
// attention_mask (ones where there is none). Throws Error(kInvalidArgument) with the block, the
// input and its shape where there is none, or where the program was not exported for such a shape.
at::Tensor user_input(const std::string& block, const std::vector<InputEntry>& inputs, size_t place,
                      const MicroBatch& micro_batch);

// mask: the micro-batch's; undefined: none. Throws Error(kInvalidArgument) for one that the program
// does not take, and which would change its numbers.
void check_mask(const std::string& block, const std::vector<InputEntry>& inputs,
                const at::Tensor& mask);

}  // namespace tessera::program
