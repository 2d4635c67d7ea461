// SPDX-License-Identifier: MIT
#pragma once
// Modules and losses in users' style, for tests of adapted modules.
#include <ATen/ATen.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>

#include "tessera/core/micro_batch.h"

namespace tessera::testing {

// SUM over the rows.
inline at::Tensor squared_error(const at::Tensor& output, const MicroBatch& micro_batch) {
  return (output - micro_batch.labels).square().sum();
}

// A child with layers of its own (LibTorch does not allow a Sequential inside a Sequential).
struct Pair : torch::nn::Cloneable<Pair> {
  Pair(const torch::nn::Linear& first, const torch::nn::Linear& second)
      : first_(register_module("first", first)), second_(register_module("second", second)) {}
  void reset() override {
    first_ = register_module("first", torch::nn::Linear(first_->options));
    second_ = register_module("second", torch::nn::Linear(second_->options));
  }
  at::Tensor forward(const at::Tensor& x) { return second_->forward(at::tanh(first_->forward(x))); }
  torch::nn::Linear first_, second_;
};

}  // namespace tessera::testing
