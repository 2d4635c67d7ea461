// SPDX-License-Identifier: MIT
#include "lib/ops/router_sums.h"

#include <ATen/ATen.h>

namespace tessera::ops {

at::Tensor router_sums(const Routing& routing, const at::Tensor& log_sum_exp,
                       const at::Tensor& counted) {
  const auto& [probabilities, experts, weights] = routing;
  const at::Tensor by_token =
      at::cat({probabilities, log_sum_exp.square().unsqueeze(1)}, /*dim=*/1);
  const at::Tensor ones =
      counted.defined() ? counted.to(probabilities.scalar_type()) : at::ones_like(log_sum_exp);
  // Sums of ones are exact in any order.
  const at::Tensor counts =
      at::zeros({probabilities.size(1)}, probabilities.options())
          .scatter_add_(0, experts.reshape({-1}),
                        ones.unsqueeze(1).expand(experts.sizes()).reshape({-1}));
  const at::Tensor sums =
      counted.defined() ? (by_token * ones.unsqueeze(1)).sum(0) : by_token.sum(0);
  return at::cat({sums, counts});
}

at::Tensor router_sums_backward(const at::Tensor& gradient, const Routing& routing,
                                const at::Tensor& log_sum_exp, const at::Tensor& counted) {
  const at::Tensor& probabilities = routing.probabilities;
  const int64_t experts = probabilities.size(1);
  const at::Tensor of_probabilities = gradient.narrow(0, 0, experts);
  const at::Tensor of_square = gradient.select(0, experts);
  const at::Tensor common =
      (probabilities * of_probabilities).sum(-1) - 2 * log_sum_exp * of_square;
  const at::Tensor dlogits = probabilities * (of_probabilities - common.unsqueeze(1));
  return counted.defined() ? dlogits * counted.to(dlogits.scalar_type()).unsqueeze(1) : dlogits;
}

}  // namespace tessera::ops
