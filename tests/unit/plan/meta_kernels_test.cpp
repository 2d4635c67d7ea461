// SPDX-License-Identifier: MIT
// Operators that LibTorch's C++ library cannot run on meta tensors: shapes and gradients' shapes.
#include "lib/plan/meta_kernels.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include "lib/core/meta.h"
#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("triangular systems and sums along a row run without memory, backward too") {
  register_meta_kernels();
  const auto options = at::dtype(at::kFloat).device(at::kMeta);
  const at::Tensor system = at::empty({2, 1, 4, 4}, options).requires_grad_();
  const at::Tensor values = at::empty({3, 4, 5}, options).requires_grad_();
  const at::Tensor solved = at::linalg_solve_triangular(system, values, /*upper=*/false,
                                                        /*left=*/true, /*unitriangular=*/true);
  CHECK(solved.sizes() == at::IntArrayRef({2, 3, 4, 5}));
  solved.cumsum(2).sum().backward();  // the gradient of a running sum is reversed twice
  CHECK(system.grad().sizes() == system.sizes());
  CHECK(values.grad().sizes() == values.sizes());
}

TEST_CASE("attention without memory is LibTorch's own where nobody counts") {
  register_meta_kernels();
  const at::Tensor x =
      at::empty({2, 4, 8, 16}, at::dtype(at::kFloat).device(at::kMeta)).requires_grad_();
  const auto attend = [&] {
    return at::scaled_dot_product_attention(x, x, x, std::nullopt, 0.0, /*is_causal=*/true);
  };
  const auto is_ours = [&] {  // LibTorch's ends in products
    return attend().grad_fn()->name().find("CountedAttention") != std::string::npos;
  };
  CHECK_FALSE(is_ours());
  const MetaMemoryCounter counter;
  CHECK(is_ours());
  attend().sum().backward();
  CHECK(x.grad().sizes() == x.sizes());
}
