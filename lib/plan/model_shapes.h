// SPDX-License-Identifier: MIT
#pragma once
// A model's parameters as one rank of a tensor axis builds them, without memory.
#include <memory>
#include <string>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera {

struct ParameterShape {
  std::string owner;    // "block.parameter" of the tensor it is; its own name unless it is tied
  Parameter parameter;  // on the meta device
  bool tied = false;    // owner or alias of a tied pair
};

struct ModelShapes {
  std::vector<std::vector<ParameterShape>> blocks;  // aliases included
  std::vector<std::shared_ptr<Communicator>> axes;  // that placements point at; they do nothing
};

// How the ranks of a mesh share a model's blocks.
struct ShapeAxes {
  int tensor = 1;
  bool sequence_parallel = false;
  int ends = 1;  // ranks that share the first and the last block: those of `tensor`, or all stages
};

// Builds every block on the meta device. Throws Error(kInvalidArgument) when the ranks cannot share
// the model.
ModelShapes model_shapes(const ModelSpec& model, const ShapeAxes& axes = {});

}  // namespace tessera
