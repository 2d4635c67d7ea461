// SPDX-License-Identifier: MIT
#pragma once
// Cross-entropy of scores that a program gives.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace tessera::program {

constexpr int64_t kLossChunkRows = 1024;  // most rows of scores in memory

// Throws Error(kInvalidArgument) for scores and labels of other shapes than below, for scores that
// are no floating numbers, and on the CPU for a label that is no class.
void check_classes(const at::Tensor& scores, const at::Tensor& labels);
// Throws Error(kInvalidArgument) on the CPU for a label that is no class.
void check_labels(const at::Tensor& labels, int64_t classes);

// Sum over rows of -log softmax(scores)[label] as an fp32 scalar; rows labelled -100 count for
// nothing. scores [rows, classes] of a floating dtype, labels int64 [rows]. Throws
// Error(kInvalidArgument) on the CPU for a label that is no class. weights: fp32 [rows], which
// multiply the rows' losses; undefined: 1.
at::Tensor loss_of_scores(const at::Tensor& scores, const at::Tensor& labels,
                          const at::Tensor& weights = {});

// [rows, n] -> [rows, classes], row by row.
using ScoresOf = std::function<at::Tensor(const at::Tensor& rows)>;

// The same of scores_of(hidden), never holding more than chunk_rows rows of scores. The gradients
// are computed in this call, times loss_gradient (fp32 scalar): those of parameters are added to
// their grad(), and backward's incoming gradient is expected to be loss_gradient. parameter: any
// that scores_of() trains, or undefined. own_scores: backward of scores_of() does not read the
// scores, so their gradients may take their memory.
at::Tensor chunked_loss(const ScoresOf& scores_of, const at::Tensor& hidden,
                        const at::Tensor& labels, const at::Tensor& loss_gradient,
                        const at::Tensor& parameter, const at::Tensor& weights = {},
                        bool own_scores = false, int64_t chunk_rows = kLossChunkRows);

}  // namespace tessera::program
