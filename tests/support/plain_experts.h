// SPDX-License-Identifier: MIT
#pragma once
// A mixture of experts of LibTorch's operations alone.
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/models/decoder_config.h"

namespace tessera::testing {

// Every expert computes all tokens; weights of those that a token did not choose are 0. x [..., h],
// router [experts, h], up [experts, 2 I, h], down [experts, h, I] -> like x. Sigmoids' bias is 0.
at::Tensor plain_experts(const at::Tensor& x, const at::Tensor& router, const at::Tensor& up,
                         const at::Tensor& down, const DecoderConfig& config);

// The losses of all routers with their factors, as transformers has them: logits of all layers lie
// behind each other.
class PlainRouterLosses {
 public:
  // x [..., h], as for plain_experts(); real: bool [...] or undefined; bias [experts] or undefined.
  void add(const at::Tensor& x, const at::Tensor& router, const at::Tensor& real,
           const at::Tensor& bias = {});
  // Undefined without layers.
  at::Tensor sum(const DecoderConfig& config) const;

 private:
  std::vector<at::Tensor> logits_;  // [real tokens, experts]
};

// gpt-oss' experts, with weights by their names in a layer's feed-forward part.
at::Tensor plain_clamped_experts(const at::Tensor& x, const DecoderConfig& config,
                                 const std::function<at::Tensor(const std::string&)>& weight);

}  // namespace tessera::testing
