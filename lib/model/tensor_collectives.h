// SPDX-License-Identifier: MIT
#pragma once
// Collectives over a tensor axis without autograd, with helpers of the autograd functions that use
// them.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/comm/communicator.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera::detail {

// A tensor that is complete after wait().
struct Pending {
  at::Tensor tensor;
  Work work;
  const at::Tensor& wait() {
    work.wait();
    return tensor;
  }
};

// x as [rows, n], contiguous.
at::Tensor as_rows(const at::Tensor& x);
// In-place all-reduce.
Pending start_all_reduce(const at::Tensor& x, const TensorAxis& axis);
// In-place maximum over the ranks.
void reduce_largest(const at::Tensor& x, const TensorAxis& axis);
// All-gather: own [rows_per_rank, n] -> [rows, n].
Pending start_gather_rows(const at::Tensor& own, int64_t rows, const TensorAxis& axis);
// Reduce-scatter: [rows, n] -> own [rows_per_rank, n].
Pending start_reduce_scatter_rows(const at::Tensor& all, const TensorAxis& axis);
// Own [rows_per_rank, n] of all [rows, n], padded with zeros.
at::Tensor own_rows(const at::Tensor& all, const TensorAxis& axis);

// Saves an autograd function's axis from forward to backward.
void keep_axis(torch::autograd::AutogradContext* context, const TensorAxis& axis);
TensorAxis kept_axis(torch::autograd::AutogradContext* context);

// Destination of a parameter's gradient: its .grad() if a strategy has set one, else new zeros for
// autograd.
struct GradientSink {
  explicit GradientSink(const at::Tensor& parameter);
  at::Tensor target;        // undefined: not wanted
  at::Tensor for_autograd;  // undefined: target is .grad()
};

}  // namespace tessera::detail
