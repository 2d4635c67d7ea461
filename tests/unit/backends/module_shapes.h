// SPDX-License-Identifier: MIT
#pragma once
// Programs in the shapes that users write, under every layout: as in plain LibTorch, or refused.
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/backends/plain_training.h"

namespace tessera::testing {

// One rank; two and three data ranks of ddp, zero2, zero3 and fsdp; two stages where the model has
// several blocks.
std::vector<NamedLayout> layouts_of_shapes(bool several_blocks);

// Twelve rows of six numbers a step: labels are classes below three, or three numbers a row.
std::vector<MicroBatch> rows_with_classes();
std::vector<MicroBatch> rows_with_numbers();

// The call's result, or the message of the Error(kInvalidArgument) that it threw. A call that takes
// 20 seconds ends the program: a rank waits for one that never comes.
std::string within_limit(const std::string& what, const std::function<std::string()>& call);

// What a strategy may not change: names, tensors, values, flags and modes. `of_same_tensors`: also
// which tensors and layers the module is made of.
std::string state_of(const torch::nn::Module& module, bool of_same_tensors = true);

}  // namespace tessera::testing
