// SPDX-License-Identifier: MIT
#pragma once
// A mixture of experts of LibTorch's operations alone.
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "tessera/models/decoder_config.h"

namespace tessera::testing {

// Every expert computes all tokens; weights of those that a token did not choose are 0. x [..., h],
// router [experts, h], up [experts, 2 I, h], down [experts, h, I] -> like x.
at::Tensor plain_experts(const at::Tensor& x, const at::Tensor& router, const at::Tensor& up,
                         const at::Tensor& down, const DecoderConfig& config);

// gpt-oss' experts, with weights by their names in a layer's feed-forward part.
at::Tensor plain_clamped_experts(const at::Tensor& x, const DecoderConfig& config,
                                 const std::function<at::Tensor(const std::string&)>& weight);

}  // namespace tessera::testing
