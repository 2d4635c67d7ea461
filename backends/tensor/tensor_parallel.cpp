// SPDX-License-Identifier: MIT
#include "tessera/backends/tensor/tensor_parallel.h"

#include <utility>

#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {

ModelSpec TensorParallel::operator()(ModelSpec model) const {
  const std::string problem = tensor_parallel_problem(model, tensor_->size());
  check(problem.empty(), ErrorCode::kInvalidArgument, problem);
  if (tensor_->size() == 1) return model;
  for (BlockBuilder& builder : model.blocks) {
    builder = shared_by(*tensor_, std::move(builder), options_.sequence_parallel);
  }
  return model;
}

}  // namespace tessera
