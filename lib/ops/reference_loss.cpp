// SPDX-License-Identifier: MIT
// Vocabulary operations: logits, losses, and the gradient of an embedding.
#include <ATen/ATen.h>

#include <limits>

#include "lib/ops/reference.h"
#include "tessera/core/micro_batch.h"

namespace tessera::ops::reference {

at::Tensor logits_forward(const at::Tensor& x, const at::Tensor& weight) {
  return at::mm(x, weight.t());
}

void cross_entropy_(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& scale,
                    const at::Tensor& row_loss) {
  const int64_t vocabulary = logits.size(1);
  const at::Tensor ignored = labels.eq(kIgnoredLabel);
  const at::Tensor outside = labels.lt(0).logical_or_(labels.ge(vocabulary)).logical_and_(~ignored);
  const at::Tensor target = labels.clamp(0, vocabulary - 1).unsqueeze(1);
  at::Tensor log_probability = at::log_softmax(logits.to(wide(logits)), 1);
  at::Tensor loss = log_probability.gather(1, target).squeeze(1).neg_();
  loss.masked_fill_(ignored, 0.0);
  loss.masked_fill_(outside, std::numeric_limits<double>::quiet_NaN());
  row_loss.copy_(loss);
  if (!scale.defined()) return;
  at::Tensor gradient = log_probability.exp_();
  gradient.scatter_add_(1, target, at::full_like(target, -1, gradient.options()));
  gradient.mul_(scale).masked_fill_(ignored.unsqueeze(1), 0.0);
  logits.copy_(gradient);
}

void cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& labels,
                              const at::Tensor& statistics) {
  const int64_t columns = logits.size(1);
  const at::Tensor here = labels.ge(0).logical_and_(labels.lt(columns));
  const at::Tensor target = logits.gather(1, labels.clamp(0, columns - 1).unsqueeze(1)).squeeze(1);
  statistics[0].copy_(logits.to(wide(logits)).logsumexp(1));
  const at::Tensor nowhere = labels.lt(0).logical_and_(labels.ne(kIgnoredLabel));
  statistics[1].copy_(target.masked_fill(here.logical_not(), 0.0)
                          .masked_fill_(nowhere, std::numeric_limits<double>::quiet_NaN()));
}

void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& statistics, const at::Tensor& scale,
                             const at::Tensor& row_loss) {
  const int64_t columns = logits.size(1);
  const at::Tensor ignored = labels.eq(kIgnoredLabel), target = statistics.select(1, 1).sum(0);
  const at::Tensor log_sum_exp = statistics.select(1, 0).logsumexp(0).masked_fill_(
      target.ne(target), std::numeric_limits<double>::quiet_NaN());
  row_loss.copy_((log_sum_exp - target).masked_fill_(ignored, 0.0));
  if (!scale.defined()) return;
  const at::Tensor here = labels.ge(0).logical_and_(labels.lt(columns)).unsqueeze(1);
  at::Tensor gradient = (logits.to(wide(logits)) - log_sum_exp.unsqueeze(1)).exp_();
  gradient.scatter_add_(1, labels.clamp(0, columns - 1).unsqueeze(1),
                        here.to(gradient.scalar_type()).neg_());
  gradient.mul_(scale).masked_fill_(ignored.unsqueeze(1), 0.0);
  logits.copy_(gradient);
}

void embedding_backward(const at::Tensor& gradient, const at::Tensor& ids,
                        const at::Tensor& weight_gradient) {
  const at::Tensor source = gradient.reshape({-1, gradient.size(-1)});
  if (source.scalar_type() == wide(source)) {
    weight_gradient.index_add_(0, ids.reshape(-1), source);
    return;
  }
  // 16 bits: sums equal ids first, so that small contributions to a frequent id are not rounded
  // away.
  auto [unique, inverse, counts] = at::unique_dim(ids.reshape(-1), 0, true, true);
  const at::Tensor sum =
      at::zeros({unique.size(0), source.size(1)}, source.options().dtype(at::kFloat))
          .index_add_(0, inverse, source.to(at::kFloat));
  weight_gradient.index_copy_(
      0, unique,
      sum.add_(weight_gradient.index_select(0, unique)).to(weight_gradient.scalar_type()));
}

}  // namespace tessera::ops::reference
