#pragma once
// A model's parameters as one rank of a tensor axis builds them, without memory.
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera {

struct ParameterShape {
  std::string owner;  // "block.parameter" of the tensor it is; its own name unless it is tied
  at::Tensor tensor;  // on the meta device
  bool tied = false;  // owner or alias of a tied pair
  bool whole = true;  // every tensor rank holds all of it
};

// Block by block, aliases included. Builds every block on the meta device. Throws
// Error(kInvalidArgument) when the ranks cannot share the model. end_ranks: a pipeline's stages
// that share the first and the last block.
std::vector<std::vector<ParameterShape>> model_shapes(const ModelSpec& model, int tensor_ranks = 1,
                                                      int end_ranks = 1);

}  // namespace tessera
