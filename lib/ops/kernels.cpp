// SPDX-License-Identifier: MIT
#include "tessera/ops/kernels.h"

#include <ATen/ATen.h>
#include <ATen/DeviceGuard.h>

#include <cmath>

#include "lib/core/meta.h"
#include "lib/core/operation_range.h"
#include "lib/ops/counted.h"
#include "lib/ops/cpu/cpu_ops.h"
#include "lib/ops/cuda_ops.h"
#include "lib/ops/packed.h"
#include "lib/ops/work.h"
#include "tessera/core/error.h"
#include "tessera/core/lazy_zero.h"

namespace tessera::ops {
namespace {

const CudaOps* table_for(const at::Tensor& where) {
  if (where.is_cuda()) return cuda_ops();
  return where.is_meta() && runs_on_gpu(where) ? &counted_cuda_ops() : nullptr;
}

// Calls the entry of the CUDA table for CUDA tensors, else the reference.
template <auto Entry, typename Reference, typename... Arguments>
auto dispatch(const OperationRange& /*until it is done*/, const at::Tensor& where,
              Reference reference, Arguments&&... arguments) {
  const c10::OptionalDeviceGuard guard(at::device_of(where));
  const CudaOps* cuda = table_for(where);
  const bool has = cuda != nullptr && cuda->*Entry != nullptr;
  return (has ? cuda->*Entry : reference)(std::forward<Arguments>(arguments)...);
}

}  // namespace

#define TESSERA_RANGE(prefix, name, ...) \
  OperationRange(prefix #name, [&] { return work::name(__VA_ARGS__); })
#define TESSERA_DISPATCH(name, where, ...)                                                \
  dispatch<&CudaOps::name>(TESSERA_RANGE("", name, __VA_ARGS__), where, &reference::name, \
                           __VA_ARGS__)

void add_column_sums(ColumnSums& sums) {
  if (sums.items.empty()) return;
  for (const auto& item : sums.items) materialize_lazy_zero(item.gradient);
  TESSERA_DISPATCH(add_column_sums, sums.items.front().gradient, sums);
}

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& residual, const at::Tensor& result) {
  return TESSERA_DISPATCH(linear_forward, x, x, weight, bias, residual, result);
}

at::Tensor linear_backward_input(const at::Tensor& gradient, const at::Tensor& weight) {
  std::vector<int64_t> shape = gradient.sizes().vec();
  shape.back() = weight.size(1);
  at::Tensor result = at::empty(shape, gradient.options());
  linear_backward_input_out(gradient, weight, result);
  return result;
}

void linear_backward_input_out(const at::Tensor& gradient, const at::Tensor& weight,
                               const at::Tensor& result) {
  TESSERA_DISPATCH(linear_backward_input_out, gradient, gradient, weight, result);
}

void linear_backward_weight(const at::Tensor& gradient, const at::Tensor& x,
                            const at::Tensor& weight_gradient, bool add) {
  if (consume_lazy_zero(weight_gradient)) add = false;
  TESSERA_DISPATCH(linear_backward_weight, x, gradient, x, weight_gradient, add);
}

void linear_backward_bias(const at::Tensor& gradient, const at::Tensor& bias_gradient,
                          ColumnSums& sums) {
  TESSERA_DISPATCH(linear_backward_bias, gradient, gradient, bias_gradient, sums);
}

at::Tensor fp8_largest(const at::Tensor& x, Fp8 scaling) {
  return TESSERA_DISPATCH(fp8_largest, x, x, scaling);
}

Fp8Matrix fp8_cast(const at::Tensor& x, const at::Tensor& largest, at::ScalarType dtype) {
  return TESSERA_DISPATCH(fp8_cast, x, x, largest, dtype);
}

Fp8Layouts fp8_layouts(const at::Tensor& x, const at::Tensor& largest, at::ScalarType dtype,
                       WantedLayouts wanted) {
  check(x.dim() == 2 && largest.numel() == 1, ErrorCode::kInternal,
        "fp8_layouts: a matrix and one magnitude are expected, not shapes ", x.sizes(), " and ",
        largest.sizes());
  return TESSERA_DISPATCH(fp8_layouts, x, x, largest, dtype, wanted);
}

Fp8Matrix fp8_turned(const Fp8Matrix& x) {
  check(x.codes.dim() == 2 && x.scale.numel() == 1, ErrorCode::kInternal,
        "fp8_turned: a matrix with one scale is expected, not shape ", x.codes.sizes());
  return TESSERA_DISPATCH(fp8_turned, x.codes, x);
}

void fp8_decode(const Fp8Matrix& x, const at::Tensor& values) {
  check(x.codes.sizes() == values.sizes() && x.scale.numel() == 1, ErrorCode::kInternal,
        "fp8_decode: codes of shape ", x.codes.sizes(),
        " with one scale are expected for values of ", values.sizes());
  TESSERA_DISPATCH(fp8_decode, x.codes, x, values);
}

at::Tensor fp8_product(const Fp8Matrix& left, const Fp8Matrix& right, at::ScalarType dtype,
                       const Fp8Terms& terms) {
  check(
      left.codes.dim() == 2 && right.codes.dim() == 2 && left.codes.size(1) == right.codes.size(1),
      ErrorCode::kInvalidArgument, "fp8_product: left has shape ", left.codes.sizes(), ", right ",
      right.codes.sizes(), "; their inner dimensions must agree.");
  return TESSERA_DISPATCH(fp8_product, left.codes, left, right, dtype, terms);
}

at::Tensor linear_gelu_forward(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, at::Tensor* pre_activation) {
  return TESSERA_DISPATCH(linear_gelu_forward, x, x, weight, bias, pre_activation);
}

at::Tensor gelu_tanh_forward(const at::Tensor& x, at::Tensor* largest) {
  return TESSERA_DISPATCH(gelu_tanh_forward, x, x, largest);
}

at::Tensor gelu_tanh_backward(const at::Tensor& gradient, const at::Tensor& x) {
  return TESSERA_DISPATCH(gelu_tanh_backward, x, gradient, x);
}

void gelu_tanh_backward_(const at::Tensor& gradient, const at::Tensor& pre_activation,
                         const at::Tensor& bias_gradient, ColumnSums& sums, at::Tensor* output,
                         at::Tensor* largest) {
  TESSERA_DISPATCH(gelu_tanh_backward_, gradient, gradient, pre_activation, bias_gradient, sums,
                   output, largest);
}

at::Tensor swiglu_forward(const at::Tensor& gate_up, at::Tensor* largest) {
  return TESSERA_DISPATCH(swiglu_forward, gate_up, gate_up, largest);
}

at::Tensor swiglu_backward_(const at::Tensor& gradient, const at::Tensor& gate_up,
                            at::Tensor* output, at::Tensor* largest) {
  return TESSERA_DISPATCH(swiglu_backward_, gradient, gradient, gate_up, output, largest);
}

at::Tensor clamped_swiglu_forward(const at::Tensor& gate_up) {
  return TESSERA_DISPATCH(clamped_swiglu_forward, gate_up, gate_up);
}

at::Tensor clamped_swiglu_backward(const at::Tensor& gradient, const at::Tensor& gate_up) {
  return TESSERA_DISPATCH(clamped_swiglu_backward, gradient, gradient, gate_up);
}

bool grouped_product_into(const at::Tensor& left, const at::Tensor& right, const at::Tensor& ends,
                          const at::Tensor& result) {
  return TESSERA_DISPATCH(grouped_product_into, left, left, right, ends, result);
}

at::Tensor dispatch_rows(const at::Tensor& x, const ExpertOrder& order) {
  return TESSERA_DISPATCH(dispatch_rows, x, x, order);
}

at::Tensor combine_rows(const at::Tensor& rows, const ExpertOrder& order,
                        const at::Tensor& foreign) {
  return TESSERA_DISPATCH(combine_rows, rows, rows, order, foreign);
}

at::Tensor weighted_swiglu(const at::Tensor& gate_up, const at::Tensor& weights,
                           const ExpertOrder& order) {
  return TESSERA_DISPATCH(weighted_swiglu, gate_up, gate_up, weights, order);
}

WeightedSwigluBackward weighted_swiglu_backward_(const at::Tensor& gradient,
                                                 const at::Tensor& gate_up,
                                                 const at::Tensor& weights,
                                                 const ExpertOrder& order,
                                                 const at::Tensor& foreign) {
  return TESSERA_DISPATCH(weighted_swiglu_backward_, gradient, gradient, gate_up, weights, order,
                          foreign);
}

LayerNormOutput layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias, double epsilon,
                                   const at::Tensor& cleared, at::Tensor* largest) {
  return TESSERA_DISPATCH(layer_norm_forward, x, x, weight, bias, epsilon, cleared, largest);
}

RmsNormOutput rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                               const at::Tensor& cleared, at::Tensor* largest) {
  return TESSERA_DISPATCH(rms_norm_forward, x, x, weight, epsilon, cleared, largest);
}

at::Tensor norm_backward(const at::Tensor& gradient, const NormInput& input,
                         const at::Tensor& residual_gradient, const LayerNormGradients& gradients,
                         ColumnSums& sums, at::Tensor* output) {
  return TESSERA_DISPATCH(norm_backward, input.x, gradient, input, residual_gradient, gradients,
                          sums, output);
}

at::Tensor dropout_add(const at::Tensor& x, const at::Tensor& residual, const Dropout& dropout) {
  return TESSERA_DISPATCH(dropout_add, x, x, residual, dropout);
}

at::Tensor dropout_backward(const at::Tensor& gradient, const Dropout& dropout,
                            const at::Tensor& bias_gradient, ColumnSums& sums) {
  return TESSERA_DISPATCH(dropout_backward, gradient, gradient, dropout, bias_gradient, sums);
}

void rotary_(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
             const at::Tensor& positions, bool back) {
  check(x.dim() == 4 && cos.dim() == 2 && cos.sizes() == sin.sizes() &&
            x.size(3) == 2 * cos.size(1) &&
            (positions.defined() ? positions.sizes() == x.sizes().slice(0, 2)
                                 : x.size(1) <= cos.size(0)),
        ErrorCode::kInvalidArgument, "rotary: x has shape ", x.sizes(), ", the tables ",
        cos.sizes(), " and ", sin.sizes(), ", positions ",
        positions.defined() ? positions.sizes() : at::IntArrayRef(),
        "; expected [batch, sequence, heads, d], [positions, d/2] and [batch, sequence].");
  TESSERA_DISPATCH(rotary_, x, x, cos, sin, positions, back);
}

HeadNormInput head_norm_(const at::Tensor& qkv, const SelfAttention& attention,
                         const HeadNorms& norms) {
  check(!attention.by_head && norms.query.sizes() == norms.key.sizes() &&
            norms.query.numel() * (attention.heads + 2 * attention.key_heads) == qkv.size(-1),
        ErrorCode::kInvalidArgument, "head_norm: qkv has shape ", qkv.sizes(),
        ", the norms' weights ", norms.query.sizes(), " and ", norms.key.sizes(), " for ",
        attention.heads, " heads and ", attention.key_heads, " key heads.");
  return TESSERA_DISPATCH(head_norm_, qkv, qkv, attention, norms);
}

void head_norm_backward_(const at::Tensor& gradient, const SelfAttention& attention,
                         const HeadNorms& norms, const HeadNormInput& input,
                         const at::Tensor& query, const at::Tensor& key, ColumnSums& sums) {
  TESSERA_DISPATCH(head_norm_backward_, gradient, gradient, attention, norms, input, query, key,
                   sums);
}

SelfAttention alibi(const at::Tensor& slopes, int64_t head_dim) {
  return {.heads = slopes.numel(),
          .key_heads = slopes.numel(),
          .by_head = true,
          .scale = 1.0 / std::sqrt(static_cast<double>(head_dim)),
          .slopes = slopes};
}

// Splits by operations whose backward assembles one tensor instead of adding three.
QueriesKeysValues split_heads(const at::Tensor& qkv, const SelfAttention& a) {
  const auto parts = a.by_head ? qkv.unflatten(2, {a.heads, 3, -1}).unbind(3)
                               : qkv.unflatten(2, {a.heads + 2 * a.key_heads, -1})
                                     .split_with_sizes({a.heads, a.key_heads, a.key_heads}, 2);
  return {parts[0], parts[1], parts[2]};
}

AttentionOutput attention_forward(const at::Tensor& qkv, const SelfAttention& attention,
                                  const at::Tensor& attention_mask, const PackedRows& packed) {
  const auto& [heads, key_heads, by_head, scale, slopes, dropout, window] = attention;
  check(window >= 0, ErrorCode::kInvalidArgument, "attention: a window of ", window,
        " keys; 0 is none.");
  check(heads > 0 && key_heads > 0 && heads % key_heads == 0 && (!by_head || heads == key_heads),
        ErrorCode::kInvalidArgument, "attention: ", heads, " heads and ", key_heads,
        " key heads; the former must be a multiple of the latter.");
  check(qkv.dim() == 3 && qkv.size(2) % (heads + 2 * key_heads) == 0, ErrorCode::kInvalidArgument,
        "attention: qkv has shape ", qkv.sizes(),
        ", expected [batch, sequence, (heads + 2 key "
        "heads) * d] for ",
        heads, " heads and ", key_heads, " key heads.");
  check(!slopes.defined() || slopes.sizes() == at::IntArrayRef(heads), ErrorCode::kInvalidArgument,
        "attention: slopes have the shape ", slopes.sizes(), " for ", heads, " heads.");
  check(dropout.probability >= 0 && dropout.probability < 1, ErrorCode::kInvalidArgument,
        "attention: dropout ", dropout.probability, "; expected one below 1.");
  check(!attention_mask.defined() || attention_mask.sizes() == qkv.sizes().slice(0, 2),
        ErrorCode::kInvalidArgument, "attention: the attention mask does not have the shape ",
        qkv.sizes().slice(0, 2), " of qkv.");
  check_packed(packed, qkv, attention_mask);
  return TESSERA_DISPATCH(attention_forward, qkv, qkv, attention, attention_mask, packed);
}

at::Tensor attention_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                              const SelfAttention& attention, const at::Tensor& attention_mask,
                              const AttentionOutput& forward, const PackedRows& packed) {
  return TESSERA_DISPATCH(attention_backward, qkv, gradient, qkv, attention, attention_mask,
                          forward, packed);
}

bool attends_to_sequences(const at::Tensor& x, const SelfAttention& attention, int64_t d,
                          const at::Tensor& attention_mask, const PackedRows& packed) {
  return packed.defined() &&
         TESSERA_DISPATCH(attends_to_sequences, x, x, attention, d, attention_mask, packed);
}

at::Tensor attention_to_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const CachedRows& rows, const SelfAttention& attention) {
  const auto& [keys, values, lengths] = rows;
  check(q.dim() == 4 && q.size(1) == 1 && k.sizes() == v.sizes() && keys.dim() == 4 &&
            keys.sizes() == values.sizes() && k.size(0) == q.size(0) && k.size(1) == 1 &&
            keys.size(0) == q.size(0) && keys.size(2) == k.size(2) && keys.size(3) == q.size(3) &&
            k.size(3) == q.size(3) && q.size(2) % k.size(2) == 0 && lengths.numel() == q.size(0) &&
            lengths.scalar_type() == at::kLong,
        ErrorCode::kInvalidArgument, "attention_to_cache: q has shape ", q.sizes(), ", k ",
        k.sizes(), ", v ", v.sizes(), ", the keys kept ", keys.sizes(), ", their values ",
        values.sizes(), ", lengths ", lengths.scalar_type(), lengths.sizes());
  return TESSERA_DISPATCH(attention_to_cache, q, q, k, v, rows, attention);
}

void keep_in_cache(const at::Tensor& k, const at::Tensor& v, const at::Tensor& keys,
                   const at::Tensor& values, const PackedRows& packed) {
  check(packed.defined() && k.dim() == 4 && k.size(0) == 1 && k.sizes() == v.sizes() &&
            k.size(1) == packed.positions.numel() && keys.dim() == 4 &&
            keys.sizes() == values.sizes() && keys.size(2) == k.size(2) &&
            keys.size(3) == k.size(3) && packed.longest() <= keys.size(1),
        ErrorCode::kInvalidArgument, "keep_in_cache: k has shape ", k.sizes(), ", v ", v.sizes(),
        ", the keys kept ", keys.sizes(), ", their values ", values.sizes(),
        "; packed rows of them are needed, none of more tokens than are kept");
  TESSERA_DISPATCH(keep_in_cache, k, k, v, keys, values, packed);
}

void embedding_backward(const at::Tensor& gradient, const at::Tensor& ids,
                        const at::Tensor& weight_gradient) {
  materialize_lazy_zero(weight_gradient);
  TESSERA_DISPATCH(embedding_backward, gradient, gradient, ids, weight_gradient);
}

at::Tensor logits_forward(const at::Tensor& x, const at::Tensor& weight) {
  return TESSERA_DISPATCH(logits_forward, x, x, weight);
}

void cross_entropy_(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& scale,
                    const at::Tensor& row_loss) {
  TESSERA_DISPATCH(cross_entropy_, logits, logits, labels, scale, row_loss);
}

void cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& labels,
                              const at::Tensor& statistics) {
  TESSERA_DISPATCH(cross_entropy_statistics, logits, logits, labels, statistics);
}

void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& statistics, const at::Tensor& scale,
                             const at::Tensor& row_loss) {
  TESSERA_DISPATCH(cross_entropy_gradient_, logits, logits, labels, statistics, scale, row_loss);
}

void adamw_update(std::span<const AdamWRange> ranges, const AdamWOptions& options,
                  const AdamWScalars& scalars) {
  if (ranges.empty()) return;
  const at::Tensor& exp_avg = ranges.front().exp_avg;
  if (exp_avg.is_meta()) return;  // in-place results need no memory
  if (exp_avg.is_cpu()) {
    const auto range = TESSERA_RANGE("cpu::", adamw_update, ranges, options, scalars);
    return cpu::adamw_update(ranges, options, scalars);
  }
  TESSERA_DISPATCH(adamw_update, exp_avg, ranges, options, scalars);
}

at::Tensor square_sum(std::span<const at::Tensor> tensors) {
  check(!tensors.empty(), ErrorCode::kInvalidArgument,
        "square_sum: no tensor was given, so the device of the result is unknown.");
  if (tensors.front().is_meta()) return counted_square_sum(tensors);
  if (tensors.front().is_cpu()) {
    const auto range = TESSERA_RANGE("cpu::", square_sum, tensors);
    return cpu::square_sum(tensors);
  }
  return TESSERA_DISPATCH(square_sum, tensors.front(), tensors);
}

Clipping clipping(const at::Tensor& squared_norm, const at::Tensor& loss_scale, double max_norm) {
  return TESSERA_DISPATCH(clipping, squared_norm, squared_norm, loss_scale, max_norm);
}

}  // namespace tessera::ops
