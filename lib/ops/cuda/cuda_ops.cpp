#include "lib/ops/cuda_ops.h"

#include "lib/ops/cuda/entries.h"

namespace tessera::ops {

const CudaOps* cuda_ops() {
  static constexpr CudaOps kOps{
      .add_column_sums = &cuda::add_column_sums,
      .linear_forward = &cuda::linear_forward,
      .linear_backward_input_out = &cuda::linear_backward_input_out,
      .linear_backward_weight = &cuda::linear_backward_weight,
      .linear_backward_bias = &cuda::linear_backward_bias,
      .linear_gelu_forward = &cuda::linear_gelu_forward,
      .gelu_tanh_forward = &cuda::gelu_tanh_forward,
      .gelu_tanh_backward = &cuda::gelu_tanh_backward,
      .gelu_tanh_backward_ = &cuda::gelu_tanh_backward_,
      .layer_norm_forward = &cuda::layer_norm_forward,
      .layer_norm_backward = &cuda::layer_norm_backward,
      .alibi_attention_forward = &cuda::alibi_attention_forward,
      .alibi_attention_backward = &cuda::alibi_attention_backward,
      .embedding_backward = &cuda::embedding_backward,
      .logits_forward = &cuda::logits_forward,
      .cross_entropy_ = &cuda::cross_entropy_,
      .cross_entropy_statistics = &cuda::cross_entropy_statistics,
      .cross_entropy_gradient_ = &cuda::cross_entropy_gradient_,
      .adamw_update = &cuda::adamw_update,
      .square_sum = &cuda::square_sum,
  };
  return &kOps;
}

}  // namespace tessera::ops
