// SPDX-License-Identifier: MIT
#pragma once
// The kernel that LibTorch takes for at::scaled_dot_product_attention.
#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera::ops {

// Arguments of the operator. query [batch, heads, sequence, n], key and value the same with their
// own extents; mask broadcasts to the scores.
struct AttentionArguments {
  at::Tensor query, key, value;
  std::optional<at::Tensor> mask = std::nullopt;
  double dropout = 0;
  bool is_causal = false;
  std::optional<double> scale = std::nullopt;
  bool shares_heads = false;  // enable_gqa
};

// kMath: products and a softmax, which keep their scores.
enum class AttentionKernel { kMath, kFlash, kEfficient, kCudnn };

// For tensors of a CPU or GPU, or meta that stands for it. GPUs are taken to be Hopper's, with the
// order of kernels that LibTorch has there. Sources: LibTorch 2.11's
// ATen/native/transformers/sdp_utils_cpp.h, sdp_utils_cpp.cpp and cuda/sdp_utils.cpp.
AttentionKernel attention_kernel(const AttentionArguments& arguments);

}  // namespace tessera::ops
