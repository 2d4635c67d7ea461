// SPDX-License-Identifier: MIT
#pragma once
// Biases of a layer's experts, as products with a matrix of who belongs to whom: sums have the same
// order on every device and in every run.
#include "lib/models/decoder_block.h"
#include "lib/models/expert_feed_forward.h"

namespace tessera::detail {

// Adds to every row of saved.inner [rows, 2 I] the up bias of its expert.
void add_up_biases(const ExpertWeights& w, const ExpertsSaved& saved);
// Adds to sum [tokens, h] the down biases of each token's experts, times their weights.
void add_down_biases(const at::Tensor& sum, const ExpertWeights& w, const ExpertsSaved& saved);

// Adds the down biases' gradients to g, for gradient [tokens, h] of the sum. Returns what they add
// to the gradients of routing.weights.
at::Tensor down_biases_backward(const at::Tensor& gradient, const ExpertWeights& w,
                                const ExpertWeights& g, const ExpertsSaved& saved);
// Adds the gradients of the up biases and of the router's bias to g.
void add_bias_gradients(const ExpertsBackward& backward, const ExpertsSaved& saved,
                        const ExpertWeights& g);

}  // namespace tessera::detail
