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
  const at::Tensor logits = at::linear(widened(x), widened(router));
  const at::Tensor probabilities =
      config.sigmoid_routing ? 1 / (1 + (-logits).exp()) : logits.softmax(-1);
  const at::Tensor least =
      std::get<0>(probabilities.detach().topk(config.experts_per_token, -1)).select(-1, -1);
  at::Tensor weights = at::where(probabilities.ge(least.unsqueeze(-1)), probabilities,
                                 at::zeros_like(probabilities));
  if (config.normalised_routing) weights = weights / weights.sum(-1, true);
  weights = weights * config.routing_scale;
  at::Tensor sum;
  for (int64_t expert = 0; expert < config.experts; ++expert) {
    const auto inner = at::linear(x, up.select(0, expert)).chunk(2, -1);
    const at::Tensor y = at::linear(at::silu(inner[0]) * inner[1], down.select(0, expert));
    const at::Tensor part = widened(y) * weights.select(-1, expert).unsqueeze(-1);
    sum = sum.defined() ? sum + part : part;
  }
  return sum.to(x.scalar_type());
}

void PlainRouterLosses::add(const at::Tensor& x, const at::Tensor& router, const at::Tensor& real,
                            const at::Tensor& bias) {
  const at::Tensor tokens = x.reshape({-1, x.size(-1)});
  const at::Tensor of_real =
      real.defined() ? tokens.index_select(0, real.reshape({-1}).nonzero().squeeze(1)) : tokens;
  const auto dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor added = bias.defined() ? bias.to(dtype) : bias;
  logits_.push_back(at::linear(of_real.to(dtype), router.to(dtype), added));
}

at::Tensor PlainRouterLosses::sum(const DecoderConfig& config) const {
  if (logits_.empty()) return {};
  const at::Tensor logits = at::cat(logits_), probabilities = logits.softmax(-1);
  const at::Tensor chosen = std::get<1>(probabilities.detach().topk(config.experts_per_token, -1));
  const at::Tensor share =
      at::one_hot(chosen, config.experts).to(logits.scalar_type()).sum(1).mean(0);
  const at::Tensor balance = (share * probabilities.mean(0)).sum() * config.experts;
  const at::Tensor z = logits.logsumexp(-1).square().mean();
  return config.router_aux_loss_coef * balance + config.router_z_loss_coef * z;
}

at::Tensor plain_clamped_experts(const at::Tensor& x, const DecoderConfig& config,
                                 const std::function<at::Tensor(const std::string&)>& weight) {
  const auto widened = [](const at::Tensor& t) {
    return t.scalar_type() == at::kDouble ? t : t.to(at::kFloat);
  };
  const at::Tensor logits =
      at::linear(widened(x), widened(weight("router.weight")), widened(weight("router.bias")));
  const auto [chosen, experts] = logits.topk(config.experts_per_token, -1);
  const at::Tensor weights = chosen.softmax(-1);
  const at::Tensor up = weight("experts.gate_up_proj"),
                   up_bias = weight("experts.gate_up_proj_bias"),
                   down = weight("experts.down_proj"), down_bias = weight("experts.down_proj_bias");
  at::Tensor sum = at::zeros_like(widened(x));
  for (int64_t expert = 0; expert < config.experts; ++expert) {
    const at::Tensor inner = at::matmul(x, up[expert]) + up_bias[expert];
    const at::Tensor gate = inner.slice(-1, 0, inner.size(-1), 2).clamp_max(7),
                     linear = inner.slice(-1, 1, inner.size(-1), 2).clamp(-7, 7);
    const at::Tensor active = gate * at::sigmoid(1.702 * gate) * (linear + 1);
    const at::Tensor y = at::matmul(active, down[expert]) + down_bias[expert];
    const at::Tensor own = weights.masked_fill(experts.ne(expert), 0).sum(-1, true);
    sum = sum + widened(y) * own;
  }
  return sum.to(x.scalar_type());
}

}  // namespace tessera::testing
