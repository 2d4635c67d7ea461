#include "tessera/backends/tensor/tensor_parallel.h"

#include <ATen/ATen.h>

#include <utility>

#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {
namespace {

// Norms would count a parameter twice, and replicas drift apart, if a block ignored the axis.
std::unique_ptr<Block> build_checked(const ModelSpec& model, const BlockBuilder& builder,
                                     const BuildContext& context) {
  auto block = builder.build(context);
  for (const auto& parameter : block->parameters()) {
    check(!parameter.shard.replicated() || parameter.copies % context.tensor->size() == 0,
          ErrorCode::kInvalidArgument, "model ", model.name, ": parameter ", builder.name, ".",
          parameter.name, " is neither cut nor marked as held by all ", context.tensor->size(),
          " tensor-parallel ranks; make it with cut_parameter()");
  }
  return block;
}

}  // namespace

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
  ModelSpec checked = model;
  for (auto& builder : checked.blocks) {
    builder.build = [model, original = builder](const BuildContext& where) {
      return build_checked(model, original, where);
    };
  }
  BuildContext shared = context;
  shared.tensor = &tensor_;
  shared.sequence_parallel = options_.sequence_parallel;
  inner_->attach(tensor_.size() > 1 ? checked : model, shared, optimizer);
}

at::Tensor TensorParallel::grad_norm_squared() {
  const at::Tensor sum = inner_->grad_norm_squared().clone().reshape({1});
  tensor_.all_reduce(sum).wait();
  return sum.squeeze(0);
}

ParameterVisitor TensorParallel::gathering(const ParameterVisitor& visitor) {
  return [this, &visitor](const VisitedParameter& part) {
    if (part.shard.replicated()) return visitor(part);
    std::vector<int64_t> shape = part.value.sizes().vec();
    shape.insert(shape.begin(), tensor_.size());
    const at::Tensor all = at::empty(shape, part.value.options());
    tensor_.all_gather(all, part.value.contiguous()).wait();
    const bool rows = part.shard.dim == 0 && part.shard.parts == 1;  // they lie in order already
    const at::Tensor whole = rows ? all.flatten(0, 1).narrow(0, 0, part.shard.full_size)
                                  : join_parts(all.unbind(0), part.shard);
    visitor({part.block, part.name, whole, TensorShard{}});
  };
}

void TensorParallel::visit_parameters(const ParameterVisitor& visitor) {
  inner_->visit_parameters(gathering(visitor));
}

void TensorParallel::visit_gradients(const ParameterVisitor& visitor) {
  inner_->visit_gradients(gathering(visitor));
}

}  // namespace tessera
