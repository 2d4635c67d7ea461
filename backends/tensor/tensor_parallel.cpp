#include "tessera/backends/tensor/tensor_parallel.h"

#include <utility>

#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {

TensorParallel::TensorParallel(std::unique_ptr<Strategy> inner, Communicator& tensor,
                               const TensorParallelOptions& options)
    : inner_(std::move(inner)), tensor_(tensor), options_(options) {}

std::string TensorParallel::name() const {
  return concat(inner_->name(), " tensor=", tensor_.size(),
                options_.sequence_parallel ? " sequence-parallel" : "");
}

void TensorParallel::attach(const ModelSpec& model, const BuildContext& context,
                            const OptimizerFactory& optimizer) {
  const std::string problem = tensor_parallel_problem(model, tensor_.size());
  check(problem.empty(), ErrorCode::kInvalidArgument, problem);
  ModelSpec shared = model;
  if (tensor_.size() > 1) {
    for (auto& builder : shared.blocks) {
      builder = shared_by(tensor_, std::move(builder), options_.sequence_parallel);
    }
  }
  inner_->attach(shared, context, optimizer);
}

}  // namespace tessera
