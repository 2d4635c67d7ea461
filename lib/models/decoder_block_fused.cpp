// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "lib/models/decoder_block.h"
#include "lib/models/fused_passes.h"
#include "lib/models/linear_fp8.h"
#include "lib/ops/saved_value.h"
#include "tessera/core/deferred_gradients.h"

namespace tessera {
namespace {

using detail::for_each_tensor_of;
using detail::Norm;
using detail::run_backward;
using detail::run_forward;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Weights = DecoderBlockWeights;
using Settings = detail::FusedSettings;
using Saved = detail::FusedSaved;

class FusedBlock : public torch::autograd::Function<FusedBlock> {
 public:
  // Weights that autograd must see are also separate arguments. Backward reads all weights through
  // their handles, whose storage a strategy may have replaced meanwhile.
  // Results: the block's output, and its router's sums if they are asked for.
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden,
                               at::IntArrayRef tokens, Settings settings, const Weights& weights,
                               at::TensorList, const std::vector<bool>& seen) {
    Saved s;
    at::Tensor router_sums;
    if (settings.options.router_sums != nullptr) settings.options.router_sums = &router_sums;
    const at::Tensor output = run_forward(hidden, tokens, weights, settings, &s);
    variable_list kept{s.hidden,
                       s.qkv,
                       s.attended,
                       s.inner,
                       s.active,
                       s.norm1.output,
                       s.norm1.mean,
                       s.norm1.rstd,
                       s.norm2.output,
                       s.norm2.mean,
                       s.norm2.rstd,
                       s.attention.output,
                       s.attention.log_sum_exp,
                       s.attention.random_state,
                       s.heads.x,
                       s.heads.rstd,
                       s.qkv_lowered,
                       s.dense_lowered,
                       s.up_lowered,
                       s.down_lowered,
                       s.key_heads.x,
                       s.key_heads.rstd,
                       s.shared_gate,
                       s.gate_lowered};
    for_each_tensor_of(s.experts, [&](const at::Tensor& x) { kept.push_back(x); });
    settings.options.router_sums = nullptr;
    context->save_for_backward(std::move(kept));
    save_value(context, "weights", weights);
    save_value(context, "settings", settings);
    save_value(context, "seen", seen);
    if (s.given.defined()) save_value(context, "given", std::move(s.given));
    return router_sums.defined() ? variable_list{output, router_sums} : variable_list{output};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& weights = saved_value<Weights>(context, "weights");
    const auto& settings = saved_value<Settings>(context, "settings");
    const variable_list v = context->get_saved_variables();
    const Norm norm1{v[5], v[6], v[7]}, norm2{v[8], v[9], v[10]};
    Saved saved{v[0],           v[1],  v[2],  v[3],  v[4], norm1, norm2, {v[11], v[12], v[13]},
                {v[14], v[15]}, v[16], v[17], v[18], v[19]};
    saved.key_heads = {v[20], v[21]};
    saved.shared_gate = v[22], saved.gate_lowered = v[23];
    auto next = v.begin() + 24;
    for_each_tensor_of(saved.experts, [&](at::Tensor& x) { x = *next++; });
    if (gradients.size() > 1) saved.of_router_sums = gradients[1];
    if (const auto given = context->saved_data.find("given"); given != context->saved_data.end()) {
      saved.given = saved_value<detail::GivenAttention>(context, "given");
      context->saved_data.erase(given);  // its memory is free as soon as it is read
    }
    variable_list result(4);  // hidden, tokens, settings, weights as a whole; then the seen ones
    Weights sinks = weights;
    auto seen = saved_value<std::vector<bool>>(context, "seen").begin();
    for_each_tensor(sinks, [&](at::Tensor& weight) {
      at::Tensor sink, for_autograd;
      if (weight.requires_grad()) {
        sink = weight.grad();
        if (!sink.defined()) sink = for_autograd = at::zeros_like(weight);
      }
      if (*seen++) {
        result.push_back(for_autograd);
      } else if (for_autograd.defined()) {
        weight.mutable_grad() = for_autograd;
      }
      weight = sink;
    });
    result.emplace_back();  // for `seen`
    result[0] = run_backward(gradients[0].contiguous(), weights, sinks, settings, saved);
    return result;
  }
};

}  // namespace

at::Tensor decoder_block_fused(const at::Tensor& hidden, const Weights& weights,
                               const DecoderBlockOptions& options, at::IntArrayRef tokens,
                               const at::Tensor& attention_mask, const PackedRows& packed,
                               const DecoderAttention& attention) {
  Settings settings{options, attention_mask, packed, attention};
  if (options.fp8 == Fp8::kTensorwise) settings.options.fp8_pass = std::make_shared<Fp8Pass>();
  const at::Tensor input = hidden.contiguous();
  if (!options.axis.sequence_parallel()) tokens = hidden.sizes().slice(0, 2);
  if (!at::GradMode::is_enabled()) return run_forward(input, tokens, weights, settings, nullptr);
  // Each weight that autograd sees costs it a node, although the gradient goes to .grad().
  std::vector<at::Tensor> list;
  std::vector<bool> seen;
  Weights handles = weights;
  for_each_tensor(handles, [&](const at::Tensor& weight) {
    seen.push_back(!input.requires_grad() || !weight.grad().defined());
    if (seen.back()) list.push_back(weight);
  });
  std::shared_ptr<DeferredGradients>& deferred = settings.options.deferred_gradients;
  // Gradients returned to autograd cannot be deferred.
  if (std::ranges::any_of(list, &at::Tensor::requires_grad)) deferred.reset();
  if (deferred != nullptr) deferred->promise();
  // Deferred work keeps its operands in their dtype, which may be the ranks' own tokens.
  if (Fp8Pass* const pass = settings.options.fp8_pass.get(); pass && deferred == nullptr) {
    pass->keeps_inputs = options.save_norm_outputs;
    pass->keeps_gradients = true;
  }
  const variable_list results =
      FusedBlock::apply(input, tokens, settings, weights, at::TensorList(list), seen);
  if (results.size() > 1) *options.router_sums = results[1];
  return results[0];
}

}  // namespace tessera
