// SPDX-License-Identifier: MIT
#pragma once
// Routing of a mixture of experts (Shazeer et al. 2017): the experts of every token, and the order
// in which their rows lie behind each other. No token is dropped. On a GPU the host waits for
// nothing.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops {

struct RoutingOptions {
  int64_t experts_per_token = 1;
  bool normalised = false;  // a token's weights are divided by their sum
  bool sigmoid = false;     // scores are sigmoids of the logits, each by itself; else a softmax
  double scale = 1;         // multiplies the weights, after the division
  // fp32 [experts], added to the scores for the choice alone; not trained. Undefined: none.
  at::Tensor bias = {};
};

struct Routing {
  at::Tensor probabilities;  // the scores, fp32 (fp64 for fp64) [tokens, experts]
  at::Tensor experts;        // int64 [tokens, experts_per_token], largest score and bias first
  at::Tensor weights;        // like probabilities, [tokens, experts_per_token]
};

// Logits of the router, x [tokens, h] times weight [experts, h], in fp32 (fp64 for fp64).
at::Tensor router_logits(const at::Tensor& x, const at::Tensor& weight);

// logits [tokens, experts], as of router_logits().
Routing route(const at::Tensor& logits, const RoutingOptions& options);
// Gradient of the logits for one of Routing::weights.
at::Tensor route_backward(const at::Tensor& gradient, const Routing& routing,
                          const RoutingOptions& options);

// A copy of a token for each of its experts is a row. Rows are sorted by expert, those of one
// expert by token: a counting sort, so the order is the same on every device.
struct ExpertOrder {
  at::Tensor tokens;  // int64 [rows], the token of each row
  at::Tensor slots;   // int64 [rows], token * experts_per_token + place among the token's experts
  at::Tensor rows;    // int64 [tokens, experts_per_token], the inverse of slots
  at::Tensor ends;    // int32 [experts], first row behind each expert's
};
// experts: Routing::experts. Throws Error(kInvalidArgument) for more rows than int32 counts.
ExpertOrder expert_order(const at::Tensor& experts, int64_t expert_count);

}  // namespace tessera::ops
