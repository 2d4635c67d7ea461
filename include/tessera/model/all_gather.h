// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// All-gather of rows with gradients, e.g. for contrastive losses.
#include "tessera/model/block_context.h"

namespace tessera {

/// Concatenates the ranks' tensors along dimension 0, in the order of the data axis; with one rank,
/// the tensor itself. Backward returns each rank's gradient to it, so a loss over gathered rows has
/// the gradient of one rank with all rows. All data ranks call it in the same order with the same
/// shape and dtype. For from_callable() and block_of(); it gathers one micro-batch, not all that a
/// rank accumulates. A mean that every rank computes over all rows stays a mean
/// (LossReduction::kMean).
at::Tensor all_gather(const at::Tensor& tensor, const BlockContext& context);

///@{
/// This rank's index on the data axis, and the axis's size, e.g. to compute labels of its rows.
int data_rank(const BlockContext& context);
int data_ranks(const BlockContext& context);
///@}

}  // namespace tessera
