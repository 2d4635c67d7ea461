// SPDX-License-Identifier: MIT
#include "tests/support/plain_experts.h"

#include <ATen/ATen.h>

#include <tuple>

namespace tessera::testing {

at::Tensor plain_experts(const at::Tensor& x, const at::Tensor& router, const at::Tensor& up,
                         const at::Tensor& down, const DecoderConfig& config) {
  const auto widened = [](const at::Tensor& t) {
    return t.scalar_type() == at::kDouble ? t : t.to(at::kFloat);
  };
  const at::Tensor probabilities = at::linear(widened(x), widened(router)).softmax(-1);
  const at::Tensor least =
      std::get<0>(probabilities.detach().topk(config.experts_per_token, -1)).select(-1, -1);
  at::Tensor weights = at::where(probabilities.ge(least.unsqueeze(-1)), probabilities,
                                 at::zeros_like(probabilities));
  if (config.normalised_routing) weights = weights / weights.sum(-1, true);
  at::Tensor sum;
  for (int64_t expert = 0; expert < config.experts; ++expert) {
    const auto inner = at::linear(x, up.select(0, expert)).chunk(2, -1);
    const at::Tensor y = at::linear(at::silu(inner[0]) * inner[1], down.select(0, expert));
    const at::Tensor part = widened(y) * weights.select(-1, expert).unsqueeze(-1);
    sum = sum.defined() ? sum + part : part;
  }
  return sum.to(x.scalar_type());
}

}  // namespace tessera::testing
