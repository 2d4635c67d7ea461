// SPDX-License-Identifier: MIT
#pragma once
// A mixture of experts of LibTorch's operations alone.
#include <ATen/core/Tensor.h>

#include "tessera/models/decoder_config.h"

namespace tessera::testing {

// Every expert computes all tokens; weights of those that a token did not choose are 0. x [..., h],
// router [experts, h], up [experts, 2 I, h], down [experts, h, I] -> like x.
at::Tensor plain_experts(const at::Tensor& x, const at::Tensor& router, const at::Tensor& up,
                         const at::Tensor& down, const DecoderConfig& config);

struct PlainProduct {
  at::Tensor weight, bias;
};

// gpt-oss' experts: up [experts, h, 2 I], gates in even columns, down [experts, I, h].
at::Tensor plain_clamped_experts(const at::Tensor& x, const PlainProduct& router,
                                 const PlainProduct& up, const PlainProduct& down,
                                 const DecoderConfig& config);

}  // namespace tessera::testing
