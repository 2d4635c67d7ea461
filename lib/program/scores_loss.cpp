// SPDX-License-Identifier: MIT
#include "lib/program/scores_loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "tessera/core/error.h"
#include "tessera/core/micro_batch.h"
#include "tessera/ops/kernels.h"

namespace tessera::program {

void check_classes(const at::Tensor& scores, const at::Tensor& labels) {
  check(scores.dim() == 2 && labels.dim() == 1 && scores.size(0) == labels.size(0),
        ErrorCode::kInvalidArgument, "the program gives scores ", scores.sizes(), " for labels ",
        labels.sizes(), "; expected [rows, classes] and [rows]");
  check_labels(labels, scores.size(1));
}

void check_labels(const at::Tensor& labels, int64_t classes) {
  if (!labels.is_cpu()) return;
  const at::Tensor wrong =
      labels.ne(kIgnoredLabel).logical_and_(labels.lt(0).logical_or_(labels.ge(classes)));
  if (!wrong.any().item<bool>()) return;
  fail(ErrorCode::kInvalidArgument, "label ", labels.masked_select(wrong)[0].item<int64_t>(),
       " is no class of the program, expected 0 to ", classes - 1, ", or ", kIgnoredLabel,
       " for none");
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// cross_entropy_() of scores with losses and gradients times each row's weight.
void weighted_cross_entropy_(const at::Tensor& scores, const at::Tensor& labels,
                             const at::Tensor& weights, const at::Tensor& scale,
                             const at::Tensor& row_loss) {
  ops::cross_entropy_(scores, labels, scale, row_loss);
  if (!weights.defined()) return;
  row_loss.mul_(weights);
  if (scale.defined()) scores.mul_(weights.unsqueeze(1));
}

class ScoresLoss : public torch::autograd::Function<ScoresLoss> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& scores,
                            const at::Tensor& labels, const std::optional<at::Tensor>& weights) {
    const at::Tensor row_loss = at::empty({scores.size(0)}, scores.options().dtype(at::kFloat));
    const at::Tensor gradient = scores.detach().clone();
    weighted_cross_entropy_(gradient, labels, weights.value_or(at::Tensor()),
                            at::ones({}, row_loss.options()), row_loss);
    context->save_for_backward({gradient});
    return row_loss.sum();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor gradient = context->get_saved_variables()[0];
    return {gradient * gradients[0].to(gradient.scalar_type()), {}, {}};
  }
};

class ChunkedLoss : public torch::autograd::Function<ChunkedLoss> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& /*parameter*/, const ScoresOf& scores_of,
                            const at::Tensor& labels, const at::Tensor& loss_gradient,
                            const std::optional<at::Tensor>& weights, int64_t chunk_rows,
                            bool wanted, bool own_scores) {
    const at::Tensor row_loss = at::empty({hidden.size(0)}, hidden.options().dtype(at::kFloat));
    at::Tensor gradient;
    if (wanted) gradient = at::empty_like(hidden, at::MemoryFormat::Contiguous);
    for (int64_t first = 0; first < hidden.size(0); first += chunk_rows) {
      const int64_t count = std::min(chunk_rows, hidden.size(0) - first);
      const auto chunk = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
      const at::AutoGradMode with_gradients(true);
      const at::Tensor rows = chunk(hidden).detach().requires_grad_(wanted);
      const at::Tensor scores = scores_of(rows);
      check_classes(scores, chunk(labels));
      const at::Tensor of_scores = own_scores ? scores.variable_data() : scores.detach().clone();
      weighted_cross_entropy_(of_scores, chunk(labels), weights ? chunk(*weights) : at::Tensor(),
                              loss_gradient, chunk(row_loss));
      if (scores.requires_grad()) torch::autograd::backward({scores}, {of_scores});
      if (wanted) chunk(gradient).copy_(rows.grad());
    }
    context->save_for_backward({gradient});
    return row_loss.sum();
  }
  static variable_list backward(AutogradContext* context, variable_list /*gradients*/) {
    return {context->get_saved_variables()[0], {}, {}, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor loss_of_scores(const at::Tensor& scores, const at::Tensor& labels,
                          const at::Tensor& weights) {
  check_classes(scores, labels);
  if (at::GradMode::is_enabled() && scores.requires_grad()) {
    return ScoresLoss::apply(scores, labels.contiguous(), optional_of(weights));
  }
  const at::Tensor row_loss = at::empty({scores.size(0)}, scores.options().dtype(at::kFloat));
  weighted_cross_entropy_(scores.detach(), labels.contiguous(), weights, {}, row_loss);
  return row_loss.sum();
}

at::Tensor chunked_loss(const ScoresOf& scores_of, const at::Tensor& hidden,
                        const at::Tensor& labels, const at::Tensor& loss_gradient,
                        const at::Tensor& parameter, const at::Tensor& weights, bool own_scores,
                        int64_t chunk_rows) {
  if (at::GradMode::is_enabled() && loss_gradient.defined()) {
    return ChunkedLoss::apply(hidden, parameter, scores_of, labels.contiguous(), loss_gradient,
                              optional_of(weights), chunk_rows, hidden.requires_grad(), own_scores);
  }
  at::Tensor sum = at::zeros({}, hidden.options().dtype(at::kFloat));
  for (int64_t first = 0; first < hidden.size(0); first += chunk_rows) {
    const int64_t count = std::min(chunk_rows, hidden.size(0) - first);
    sum = sum + loss_of_scores(scores_of(hidden.narrow(0, first, count)),
                               labels.narrow(0, first, count),
                               weights.defined() ? weights.narrow(0, first, count) : at::Tensor());
  }
  return sum;
}

}  // namespace tessera::program
