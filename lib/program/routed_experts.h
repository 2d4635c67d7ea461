// SPDX-License-Identifier: MIT
#pragma once
// The gated feed-forward layers of experts, for tokens whose router has chosen.
#include <ATen/core/Tensor.h>

namespace tessera::program {

// Sum over a token's experts e of weight * down[e] (silu(gate) * up), with gate and up the halves
// of gate_up[e] x. x [tokens, h]; experts int64 and weights [tokens, experts_per_token]; gate_up
// [count, 2 n, h]; down [count, h, n] -> [tokens, h]. Experts must lie in [0, count). No token is
// dropped, and on a GPU in bf16 the host waits for nothing. Autograd adds to the gradients of
// weights that are leaves in place.
at::Tensor routed_experts(const at::Tensor& x, const at::Tensor& experts, const at::Tensor& weights,
                          const at::Tensor& gate_up, const at::Tensor& down);

}  // namespace tessera::program
