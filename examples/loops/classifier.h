// SPDX-License-Identifier: MIT
#pragma once
// A small classifier with data, for programs about the training loop.
#include "program.h"

namespace tessera {

inline torch::nn::Sequential classifier() {
  return torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, 3));
}

inline at::Tensor mean_loss(const at::Tensor& scores, const MicroBatch& batch) {
  return torch::nn::functional::cross_entropy(scores, batch.labels);
}

// Part `part` of `parts` of a step's 48 rows.
inline MicroBatch rows(int64_t step, int64_t part, int64_t parts) {
  const int64_t count = 48 / parts;
  const at::Tensor i = torch::arange(part * count, (part + 1) * count) + step * 48;
  return make_micro_batch((i.unsqueeze(1) * torch::arange(1, 9) * 0.21).cos(), i % 3);
}

}  // namespace tessera
