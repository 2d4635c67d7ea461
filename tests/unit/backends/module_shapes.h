// SPDX-License-Identifier: MIT
#pragma once
// Users' program shapes in every layout: results as in plain LibTorch, or rejected.
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/backends/plain_training.h"

namespace tessera::testing {

// One rank; two and three data ranks with ddp, zero2, zero3 and fsdp; two stages if the model has
// several blocks.
std::vector<NamedLayout> layouts_of_shapes(bool several_blocks);

// Twelve rows of six numbers per step; labels are classes below three, or three numbers per row.
std::vector<MicroBatch> rows_with_classes();
std::vector<MicroBatch> rows_with_numbers();

// The call's result, or the message of its Error(kInvalidArgument). A call longer than 20 s ends
// the program, since some rank hangs.
std::string within_limit(const std::string& what, const std::function<std::string()>& call);

// State that a strategy must not change: names, tensors, values, flags and modes. of_same_tensors:
// also the identity of tensors and layers.
std::string state_of(const torch::nn::Module& module, bool of_same_tensors = true);

}  // namespace tessera::testing
