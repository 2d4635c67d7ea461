// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Rows of all ranks in one loss, as contrastive losses need them.
#include "tessera/model/block_context.h"

namespace tessera {

/// The ranks' tensors one behind the other along dimension 0, in the order of the data axis; with
/// one rank the tensor itself. Gradients go back to the rank whose rows they are of, so a loss of
/// the gathered rows has the gradient that one rank with all of them computes. All data ranks call
/// it in the same order with tensors of the same shape and dtype: a micro-batch has as many rows on
/// each. For from_callable() and block_of(); what is gathered is of one micro-batch, not of all
/// that a rank accumulates. A mean that every rank computes over all rows stays a mean
/// (LossReduction::kMean).
at::Tensor all_gather(const at::Tensor& tensor, const BlockContext& context);

///@{
/// This rank's place among them and how many there are, e.g. for the labels of its rows.
int data_rank(const BlockContext& context);
int data_ranks(const BlockContext& context);
///@}

}  // namespace tessera
