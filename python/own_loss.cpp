// SPDX-License-Identifier: MIT
#include "python/own_loss.h"

#include <ATen/ATen.h>

#include "python/tensors.h"
#include "tessera/core/error.h"

namespace tessera::python {
OwnLoss derive(nb::handle loss, const std::vector<at::Tensor>& log_probabilities, bool single) {
  const nb::module_ torch = torch_module("losses of one's own");
  nb::list leaves;
  for (const at::Tensor& values : log_probabilities) {
    const nb::object leaf = torch.attr("from_dlpack")(array_of(values));
    leaves.append(leaf.attr("requires_grad_")(true));
  }
  const nb::object call = torch.attr("enable_grad")()(loss);  // also under torch.no_grad()
  const nb::object result = single ? call(leaves[0]) : call(leaves);
  const bool scalar = nb::isinstance(result, torch.attr("Tensor")) &&
                      nb::cast<int64_t>(result.attr("numel")()) == 1;
  check(scalar, ErrorCode::kInvalidArgument, "the loss is of type ",
        nb::type_name(result.type()).c_str(), "; it must be a tensor of torch with one element");
  check(nb::cast<bool>(result.attr("requires_grad")), ErrorCode::kInvalidArgument,
        "the loss does not depend on the log-probabilities it was given, so it trains nothing");
  result.attr("backward")();
  OwnLoss own{.value = nb::cast<double>(result.attr("item")())};
  for (size_t i = 0; i < log_probabilities.size(); ++i) {
    const nb::object gradient = leaves[i].attr("grad");
    own.gradients.push_back(
        gradient.is_none()
            ? at::zeros_like(log_probabilities[i])
            : tensor_of(gradient, at::kCPU, "the loss's gradient").to(at::kFloat).clone());
  }
  return own;
}

}  // namespace tessera::python
