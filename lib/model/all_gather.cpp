// SPDX-License-Identifier: MIT
#include "tessera/model/all_gather.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lib/ops/saved_value.h"
#include "tessera/comm/communicator.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class AllGather : public torch::autograd::Function<AllGather> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            Communicator* ranks) {
    save_value(context, "ranks", ranks);
    const at::Tensor own = tensor.contiguous();
    std::vector<int64_t> sizes = own.sizes().vec();
    sizes.front() *= ranks->size();
    const at::Tensor all = at::empty(sizes, own.options());
    ranks->all_gather(all, own).wait();
    return all;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto* ranks = saved_value<Communicator*>(context, "ranks");
    const at::Tensor all = gradients[0].contiguous();
    std::vector<int64_t> sizes = all.sizes().vec();
    sizes.front() /= ranks->size();
    const at::Tensor own = at::empty(sizes, all.options());
    ranks->reduce_scatter(own, all).wait();
    return {own, {}};
  }
};

}  // namespace

at::Tensor all_gather(const at::Tensor& tensor, const BlockContext& context) {
  check(tensor.defined() && tensor.dim() > 0, ErrorCode::kInvalidArgument,
        "all_gather: the tensor has no dimension of rows");
  if (data_ranks(context) == 1) return tensor;
  return AllGather::apply(tensor, context.data_axis);
}

int data_rank(const BlockContext& context) {
  return context.data_axis == nullptr ? 0 : context.data_axis->rank();
}

int data_ranks(const BlockContext& context) {
  return context.data_axis == nullptr ? 1 : context.data_axis->size();
}

}  // namespace tessera
