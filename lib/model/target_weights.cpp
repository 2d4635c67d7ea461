// SPDX-License-Identifier: MIT
#include "tessera/model/target_weights.h"

#include <ATen/ATen.h>

#include "tessera/core/error.h"
#include "tessera/ops/kernels.h"

namespace tessera {

at::Tensor target_weights(const MicroBatch& micro_batch) {
  const auto found = micro_batch.extra.find(kTargetWeights);
  if (found == micro_batch.extra.end()) return {};
  const at::Tensor& weights = found->second;
  check(weights.scalar_type() == at::kFloat && weights.sizes() == micro_batch.labels.sizes(),
        ErrorCode::kInvalidArgument, kTargetWeights, " are of ",
        at::toString(weights.scalar_type()), " ", weights.sizes(), "; expected Float ",
        micro_batch.labels.sizes(), ", as the labels");
  const at::Tensor flat = weights.flatten();
  const at::Tensor& positions = micro_batch.head_positions;
  return positions.defined() ? flat.index_select(0, positions) : flat;
}

at::Tensor log_probabilities_of(const at::Tensor& scores, const at::Tensor& labels) {
  const at::Tensor rows = scores.detach().flatten(0, -2);
  check(rows.size(0) == labels.numel(), ErrorCode::kInvalidArgument, "scores ", scores.sizes(),
        " for ", labels.numel(), " labels; expected one row a label");
  const at::Tensor losses = at::empty({rows.size(0)}, rows.options().dtype(at::kFloat));
  ops::cross_entropy_(rows, labels.flatten().contiguous(), {}, losses);
  return losses.neg_();
}

}  // namespace tessera
