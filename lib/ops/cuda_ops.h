#pragma once
// How the operations reach their CUDA versions without knowing CUDA: a table that is absent from
// CPU builds.
#include "lib/ops/reference.h"

namespace tessera::ops {

// One entry per operation, with the reference's signature. An entry takes any tensors on a CUDA
// device and falls back to the reference by itself.
struct CudaOps {
  decltype(&reference::add_column_sums) add_column_sums;
  decltype(&reference::linear_forward) linear_forward;
  decltype(&reference::linear_backward_input_out) linear_backward_input_out;
  decltype(&reference::linear_backward_weight) linear_backward_weight;
  decltype(&reference::linear_backward_bias) linear_backward_bias;
  decltype(&reference::linear_gelu_forward) linear_gelu_forward;
  decltype(&reference::gelu_tanh_forward) gelu_tanh_forward;
  decltype(&reference::gelu_tanh_backward) gelu_tanh_backward;
  decltype(&reference::gelu_tanh_backward_) gelu_tanh_backward_;
  decltype(&reference::layer_norm_forward) layer_norm_forward;
  decltype(&reference::layer_norm_backward) layer_norm_backward;
  decltype(&reference::alibi_attention_forward) alibi_attention_forward;
  decltype(&reference::alibi_attention_backward) alibi_attention_backward;
  decltype(&reference::embedding_backward) embedding_backward;
  decltype(&reference::logits_forward) logits_forward;
  decltype(&reference::cross_entropy_) cross_entropy_;
  decltype(&reference::cross_entropy_statistics) cross_entropy_statistics;
  decltype(&reference::cross_entropy_gradient_) cross_entropy_gradient_;
  decltype(&reference::adamw_update) adamw_update;
  decltype(&reference::square_sum) square_sum;
};

const CudaOps* cuda_ops();  // null when the library was built without CUDA

}  // namespace tessera::ops
