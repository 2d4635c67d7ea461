#pragma once
// The entries of the CudaOps table: signatures and meaning of lib/ops/reference.h.
#include "lib/ops/reference.h"

namespace tessera::ops::cuda {

void add_column_sums(ColumnSums& sums);
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& residual);
void linear_backward_input_out(const at::Tensor& gradient, const at::Tensor& weight,
                               const at::Tensor& result);
void linear_backward_weight(const at::Tensor& gradient, const at::Tensor& x,
                            const at::Tensor& weight_gradient);
void linear_backward_bias(const at::Tensor& gradient, const at::Tensor& bias_gradient,
                          ColumnSums& sums);
at::Tensor linear_gelu_forward(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, at::Tensor* pre_activation);
at::Tensor gelu_tanh_forward(const at::Tensor& x);
at::Tensor gelu_tanh_backward(const at::Tensor& gradient, const at::Tensor& x);
at::Tensor gelu_tanh_backward_(const at::Tensor& gradient, const at::Tensor& pre_activation,
                               const at::Tensor& bias_gradient, ColumnSums& sums);
LayerNormOutput layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias, double epsilon);
at::Tensor layer_norm_backward(const at::Tensor& gradient, const at::Tensor& x,
                               const at::Tensor& mean, const at::Tensor& rstd,
                               const at::Tensor& weight, const at::Tensor& bias,
                               const at::Tensor& residual_gradient,
                               const LayerNormGradients& gradients, ColumnSums& sums,
                               at::Tensor* output);
AttentionOutput alibi_attention_forward(const at::Tensor& qkv, const at::Tensor& slopes,
                                        const at::Tensor& attention_mask);
at::Tensor alibi_attention_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                                    const at::Tensor& slopes, const at::Tensor& attention_mask,
                                    const AttentionOutput& forward);
void embedding_backward(const at::Tensor& gradient, const at::Tensor& ids,
                        const at::Tensor& weight_gradient);
at::Tensor logits_forward(const at::Tensor& x, const at::Tensor& weight);
void cross_entropy_(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& scale,
                    const at::Tensor& row_loss);
void cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& labels,
                              const at::Tensor& statistics);
void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& log_sum_exp, const at::Tensor& scale);
void adamw_update(std::span<const AdamWRange> ranges, const AdamWOptions& options,
                  const AdamWScalars& scalars);
at::Tensor square_sum(std::span<const at::Tensor> tensors);

}  // namespace tessera::ops::cuda
