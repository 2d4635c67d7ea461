// SPDX-License-Identifier: MIT
#include "lib/program/tensor/operators.h"

#include <ATen/ATen.h>

#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/functional.h"

namespace tessera::program {
namespace {

const TensorAxis& axis_of(const RunContext& context) {
  check(context.axis != nullptr, ErrorCode::kInternal, "a graph of a tensor axis runs without one");
  return *context.axis;
}

at::Tensor run_enter(const std::vector<c10::IValue>& arguments, const RunContext& context) {
  return copy_to_tensor_ranks(arguments[0].toTensor(), axis_of(context));
}

at::Tensor run_sum(const std::vector<c10::IValue>& arguments, const RunContext& context) {
  return reduce_from_tensor_ranks(arguments[0].toTensor(), axis_of(context));
}

at::Tensor run_gather(const std::vector<c10::IValue>& arguments, const RunContext& context) {
  return gather_columns(arguments[0].toTensor(), arguments[1].toInt(), axis_of(context));
}

at::Tensor run_part(const std::vector<c10::IValue>& arguments, const RunContext&) {
  at::Tensor x = arguments[0].toTensor();
  const int64_t dim = arguments[1].toInt(), parts = arguments[2].toInt(),
                ranks = arguments[3].toInt(), rank = arguments[4].toInt();
  const int64_t whole = x.size(dim) / parts, own = (whole + ranks - 1) / ranks;
  if (arguments[5].toBool() && own * ranks > whole) {
    std::vector<int64_t> padding(static_cast<size_t>(2 * (x.dim() - dim)), 0);
    padding.back() = own * ranks - whole;
    x = at::constant_pad_nd(x, padding);
  }
  return x.unflatten(dim, {parts, -1}).narrow(dim + 1, rank * own, own).flatten(dim, dim + 1);
}

at::Tensor run_embedding_of_part(const std::vector<c10::IValue>& arguments, const RunContext&) {
  const at::Tensor &ids = arguments[0].toTensor(), &table = arguments[1].toTensor();
  const int64_t padding = arguments[2].toInt(), vocabulary = arguments[3].toInt(),
                rank = arguments[4].toInt(), size = table.size(0);
  const at::Tensor own = ids - rank * size;
  const at::Tensor elsewhere = own.lt(0).logical_or_(own.ge(size));
  // Ids outside of the vocabulary fail as in a whole table.
  const at::Tensor outside = ids.lt(0).logical_or_(ids.ge(vocabulary));
  const at::Tensor rows = own.remainder(size).masked_fill_(outside, size);
  const at::Tensor found = ops::embedding(rows, table).masked_fill(elsewhere.unsqueeze(-1), 0.0);
  if (padding < 0) return found;
  return at::where(ids.ne(padding).unsqueeze(-1), found, found.detach());
}

}  // namespace

const std::vector<OwnOperator>& tensor_operators() {
  static const std::vector<OwnOperator> table = {{kEnterRanks, run_enter},
                                                 {kSumOfRanks, run_sum},
                                                 {kGatherColumns, run_gather},
                                                 {kPartOf, run_part},
                                                 {kEmbeddingOfPart, run_embedding_of_part}};
  return table;
}

}  // namespace tessera::program
