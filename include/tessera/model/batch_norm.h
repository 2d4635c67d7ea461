// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Synchronised BatchNorm over the rows of all ranks, like torch.nn.SyncBatchNorm.
#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/model/block_context.h"

namespace tessera {

namespace detail {

struct BatchNormState {
  at::Tensor weight, bias;               ///< undefined: not affine
  at::Tensor running_mean, running_var;  ///< undefined: not tracked
  at::Tensor num_batches_tracked;
  double epsilon = 1e-5;
  std::optional<double> momentum = {};  ///< none: the cumulative average
};
at::Tensor global_batch_norm(const BatchNormState& norm, const at::Tensor& input,
                             const BlockContext& context);

}  // namespace detail

/// BatchNorm with mean and variance over the current micro-batches of all data ranks, whose
/// gradients reach every rank. norm: LibTorch's BatchNorm1d, 2d or 3d, its shared_ptr, or a
/// pointer. In eval mode it is norm->forward(input). For from_callable() and block_of(), with
/// ModuleOptions::running_statistics_of_rank = 0: all ranks have equal running statistics. input:
/// [rows, channels, ...]; row counts may differ between ranks. With one micro-batch per rank and
/// step it is BatchNorm over the global batch. All data ranks call it in the same order. Variances
/// are combined by Chan, Golub and LeVeque (1983). Throws Error(kInvalidArgument) for another
/// number of channels, and in training for one value per channel.
template <typename Norm>
at::Tensor global_batch_norm(Norm norm, const at::Tensor& input, const BlockContext& context) {
  if (!norm->is_training()) return norm->forward(input);
  return detail::global_batch_norm(
      {.weight = norm->weight,
       .bias = norm->bias,
       .running_mean = norm->running_mean,
       .running_var = norm->running_var,
       .num_batches_tracked = norm->num_batches_tracked,
       .epsilon = norm->options.eps(),
       .momentum = norm->options.momentum() ? std::optional<double>(*norm->options.momentum())
                                            : std::nullopt},
      input, context);
}

}  // namespace tessera
