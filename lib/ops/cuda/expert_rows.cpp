// SPDX-License-Identifier: MIT
#include "lib/ops/expert_rows.h"

#include "lib/ops/cuda/entries.h"
#include "lib/ops/cuda/support.h"

namespace tessera::ops::cuda {
namespace {

// Conditions of all kernels: orders come from expert_order().
bool takes(const at::Tensor& rows, int64_t columns) {
  return fits(rows.scalar_type(), {rows}) && columns % 8 == 0 && rows.numel() > 0;
}
bool are_floats(const at::Tensor& x) { return x.scalar_type() == at::kFloat && x.is_contiguous(); }

const int64_t* longs(const at::Tensor& x) { return x.const_data_ptr<int64_t>(); }
// The last expert's end.
const int* row_count_of(const ExpertOrder& order) {
  return order.ends.const_data_ptr<int>() + order.ends.numel() - 1;
}
WeightsOfRows weights_of(const at::Tensor& weights, const ExpertOrder& order) {
  return {weights.const_data_ptr<float>(), longs(order.slots), row_count_of(order)};
}

}  // namespace

at::Tensor dispatch_rows(const at::Tensor& x, const ExpertOrder& order) {
  const int64_t n = x.size(-1), rows = order.tokens.size(0);
  if (!takes(x, n)) return reference::dispatch_rows(x, order);
  const at::Tensor result = empty({rows, n}, x, x.scalar_type());
  dispatch_rows(x.const_data_ptr(), longs(order.tokens), row_count_of(order), result.data_ptr(),
                rows * (n / 8), int(n / 8), stream());
  check_launch("dispatch_rows");
  return result;
}

at::Tensor combine_rows(const at::Tensor& rows, const ExpertOrder& order,
                        const at::Tensor& foreign) {
  const int64_t n = rows.size(-1), tokens = order.rows.size(0), chosen = order.rows.size(1);
  if (!takes(rows, n)) return reference::combine_rows(rows, order, foreign);
  const at::Tensor result = empty({tokens, n}, rows, rows.scalar_type());
  combine_rows(type_of(rows), rows.const_data_ptr(), longs(order.rows), row_count_of(order),
               result.data_ptr(), tokens, int(n / 8), int(chosen), stream());
  check_launch("combine_rows");
  return result;
}

at::Tensor weighted_swiglu(const at::Tensor& gate_up, const at::Tensor& weights,
                           const ExpertOrder& order) {
  const int64_t n = gate_up.size(-1) / 2, rows = gate_up.size(0);
  if (!takes(gate_up, n) || !are_floats(weights)) {
    return reference::weighted_swiglu(gate_up, weights, order);
  }
  const at::Tensor output = empty({rows, n}, gate_up, gate_up.scalar_type());
  weighted_swiglu(type_of(gate_up), gate_up.const_data_ptr(), weights_of(weights, order),
                  output.data_ptr(), rows, int(n), stream());
  check_launch("weighted_swiglu");
  return output;
}

WeightedSwigluBackward weighted_swiglu_backward_(const at::Tensor& gradient,
                                                 const at::Tensor& gate_up,
                                                 const at::Tensor& weights,
                                                 const ExpertOrder& order,
                                                 const at::Tensor& foreign) {
  const int64_t n = gradient.size(-1), rows = gradient.size(0);
  if (!takes(gradient, n) || !fits(gradient.scalar_type(), {gate_up}) || !are_floats(weights)) {
    return reference::weighted_swiglu_backward_(gradient, gate_up, weights, order, foreign);
  }
  WeightedSwigluBackward result{.output = gradient,
                                .gate_up = empty_as(gate_up),
                                .weights = empty(order.rows.sizes(), weights, at::kFloat)};
  if (foreign.defined()) result.weights.zero_();  // no row has a foreign slot
  weighted_swiglu_backward(type_of(gradient), gradient.data_ptr(), gate_up.const_data_ptr(),
                           weights_of(weights, order), result.gate_up.data_ptr(),
                           result.weights.data_ptr<float>(), rows, int(n), stream());
  check_launch("weighted_swiglu_backward");
  return result;
}

}  // namespace tessera::ops::cuda
