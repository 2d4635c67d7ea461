// SPDX-License-Identifier: MIT
// Tensor axes, and the slicing of parameters over them.
#include <ATen/ATen.h>

#include <algorithm>

#include "tessera/comm/communicator.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {
namespace {

// Size of the rank's slice of one part of the sliced dimension.
int64_t size_per_rank(const std::string& name, int64_t whole, const TensorCut& cut, int ranks) {
  check(cut.padded || whole % (int64_t{cut.parts} * ranks) == 0, ErrorCode::kInvalidArgument,
        "parameter ", name, ": ", cut.parts > 1 ? concat(cut.parts, " equal parts of ") : "",
        "dimension ", cut.dim, " with ", whole, " elements cannot be shared by ", ranks,
        " tensor-parallel ranks");
  const int64_t size = (whole / cut.parts + ranks - 1) / ranks;
  check(size * (ranks - 1) < whole, ErrorCode::kInvalidArgument, "parameter ", name, ": ", whole,
        " elements of dimension ", cut.dim, " leave nothing for the last of ", ranks,
        " tensor-parallel ranks; use fewer");
  return size;
}

}  // namespace

TensorAxis::TensorAxis(const BuildContext& context) {
  if (context.tensor == nullptr || context.tensor->size() == 1) return;
  comm_ = context.tensor;
  rank_ = comm_->rank();
  size_ = comm_->size();
  sequence_parallel_ = context.sequence_parallel;
}

std::vector<int64_t> cut_shape(const std::string& name, at::IntArrayRef whole, const TensorCut& cut,
                               const TensorAxis& axis) {
  std::vector<int64_t> shape = whole.vec();
  if (cut.dim >= 0 && axis.size() > 1) {
    shape[cut.dim] = cut.parts * size_per_rank(name, whole[cut.dim], cut, axis.size());
  }
  return shape;
}

Placement place(at::IntArrayRef whole, const TensorCut& cut, const TensorAxis& axis) {
  Placement placement;
  if (axis.size() == 1) return placement;
  if (cut.dim < 0) {
    const bool own_tokens = axis.sequence_parallel() && !cut.on_all_tokens;
    placement.replicas = {{&axis.comm(), own_tokens || cut.partial_gradient}};
  } else {
    placement.cut = &axis.comm();
    placement.shard = {cut.dim, cut.parts, whole[cut.dim]};
  }
  return placement;
}

Parameter cut_parameter(const std::string& name, const at::Tensor& whole, bool weight_decay,
                        const TensorCut& cut, const TensorAxis& axis) {
  Parameter parameter{name, whole.detach(), weight_decay, place(whole.sizes(), cut, axis)};
  if (parameter.placement.cut != nullptr) {
    const at::Tensor mine = at::zeros(cut_shape(name, whole.sizes(), cut, axis), whole.options());
    copy_part(parameter.tensor, parameter.placement.shard, axis.rank(), mine);
    parameter.tensor = mine;
  }
  parameter.tensor.set_requires_grad(true);
  return parameter;
}

void copy_part(const at::Tensor& whole, const TensorShard& shard, int rank,
               const at::Tensor& part) {
  const int64_t dim = shard.dim + 1;  // after the parts
  const at::Tensor from = whole.unflatten(shard.dim, {shard.parts, -1}),
                   to = part.unflatten(shard.dim, {shard.parts, -1});
  const int64_t first = rank * to.size(dim);
  const int64_t count = std::min(to.size(dim), from.size(dim) - first);
  to.narrow(dim, 0, count).copy_(from.narrow(dim, first, count));
}

at::Tensor join_parts(const std::vector<at::Tensor>& parts, const TensorShard& shard) {
  std::vector<at::Tensor> by_part;
  for (const at::Tensor& part : parts) {
    by_part.push_back(part.unflatten(shard.dim, {shard.parts, -1}));
  }
  return at::cat(by_part, shard.dim + 1)
      .flatten(shard.dim, shard.dim + 1)
      .narrow(shard.dim, 0, shard.full_size)
      .contiguous();
}

BlockBuilder shared_by(Communicator& axis, BlockBuilder builder, bool sequence_parallel) {
  builder.sharers = &axis;
  builder.build = [&axis, sequence_parallel, name = builder.name,
                   build = builder.build](const BuildContext& context) {
    BuildContext shared = context;
    shared.tensor = &axis;
    shared.sequence_parallel = sequence_parallel;
    auto block = build(shared);
    for (const auto& parameter : block->parameters()) {
      const Placement& placement = parameter.placement;
      const bool held = std::any_of(placement.replicas.begin(), placement.replicas.end(),
                                    [&](const Replicas& held) { return held.ranks == &axis; });
      check(axis.size() == 1 || placement.cut == &axis || held, ErrorCode::kInvalidArgument,
            "parameter ", name, ".", parameter.name, " is neither cut nor marked as held by all ",
            axis.size(), " ranks that share its block; make it with cut_parameter()");
    }
    return block;
  };
  return builder;
}

at::Tensor gather_whole(const at::Tensor& value, const Placement& placement) {
  if (placement.cut == nullptr) return value;
  const TensorShard& shard = placement.shard;
  std::vector<int64_t> shape = value.sizes().vec();
  shape.insert(shape.begin(), placement.cut->size());
  const at::Tensor all = at::empty(shape, value.options());
  placement.cut->all_gather(all, value.contiguous()).wait();
  const bool rows = shard.dim == 0 && shard.parts == 1;  // already in order
  return rows ? all.flatten(0, 1).narrow(0, 0, shard.full_size) : join_parts(all.unbind(0), shard);
}

std::string tensor_parallel_problem(const ModelSpec& model, int degree) {
  if (degree == 1) return "";
  if (model.tensor_divisor == 0) {
    return concat("model ", model.name,
                  " has no tensor-parallel layers, or experts with biases, which are not cut; use "
                  "a tensor axis of 1, or build its blocks "
                  "from the layers of tessera/model/tensor_parallel.h and set "
                  "ModelSpec::tensor_divisor");
  }
  if (model.tensor_divisor % degree == 0) return "";
  std::string legal;
  for (int64_t d = 2; d <= model.tensor_divisor; ++d) {
    if (model.tensor_divisor % d == 0) legal += concat(legal.empty() ? "" : ", ", d);
  }
  return concat("model ", model.name, " cannot be shared by ", degree,
                " tensor-parallel ranks; its layers divide over ",
                legal.empty() ? "no number of ranks but 1" : legal);
}

}  // namespace tessera
