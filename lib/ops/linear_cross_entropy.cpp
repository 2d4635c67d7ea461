#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/core/micro_batch.h"
#include "tessera/ops/functional.h"
#include "tessera/ops/kernels.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Chunks {
  at::Tensor hidden, weight, labels;
  int64_t chunk_rows;
};

// Runs the head chunk by chunk. hidden_gradient and weight_gradient, where defined, receive the
// gradients times scale (the latter is added to); without either only the loss is formed.
at::Tensor run_chunks(const Chunks& in, const at::Tensor& scale, const at::Tensor& hidden_gradient,
                      const at::Tensor& weight_gradient) {
  const int64_t rows = in.hidden.size(0);
  const at::Tensor row_loss = at::empty({rows}, in.hidden.options().dtype(at::kFloat));
  const bool wanted = hidden_gradient.defined() || weight_gradient.defined();
  for (int64_t first = 0; first < rows; first += in.chunk_rows) {
    const int64_t count = std::min(in.chunk_rows, rows - first);
    const at::Tensor hidden = in.hidden.narrow(0, first, count);
    const at::Tensor logits = logits_forward(hidden, in.weight);
    cross_entropy_(logits, in.labels.narrow(0, first, count), wanted ? scale : at::Tensor(),
                   row_loss.narrow(0, first, count));
    if (weight_gradient.defined()) linear_backward_weight(logits, hidden, weight_gradient);
    if (hidden_gradient.defined()) {
      linear_backward_input_out(logits, in.weight, hidden_gradient.narrow(0, first, count));
    }
  }
  return row_loss.sum();
}

class LinearCrossEntropy : public Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& labels,
                            const std::optional<at::Tensor>& loss_gradient, int64_t chunk_rows,
                            bool enabled) {
    const Chunks in{hidden.contiguous(), weight.detach(), labels.contiguous(), chunk_rows};
    const bool given = loss_gradient.has_value();
    const bool direct = given && weight.grad().defined();
    at::Tensor hidden_gradient, weight_gradient;
    if (enabled && hidden.requires_grad()) hidden_gradient = at::empty_like(in.hidden);
    if (enabled && weight.requires_grad()) {
      weight_gradient = direct ? weight.grad() : at::zeros_like(in.weight);
    }
    const at::Tensor scale =
        given ? *loss_gradient : at::ones({}, hidden.options().dtype(at::kFloat));
    const at::Tensor loss = run_chunks(in, scale, hidden_gradient, weight_gradient);
    context->saved_data["given"] = given;
    context->save_for_backward({hidden_gradient, direct ? at::Tensor() : weight_gradient});
    return loss;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    variable_list saved = context->get_saved_variables();
    if (!context->saved_data["given"].toBool()) {
      for (at::Tensor& gradient : saved) {
        if (gradient.defined()) gradient = gradient * gradients[0].to(gradient.scalar_type());
      }
    }
    return {saved[0], saved[1], {}, {}, {}, {}};
  }
};

void check_labels(const at::Tensor& labels, int64_t vocabulary) {
  const at::Tensor wrong =
      labels.ne(kIgnoredLabel).logical_and_(labels.lt(0).logical_or_(labels.ge(vocabulary)));
  if (!wrong.any().item<bool>()) return;
  const int64_t row = wrong.nonzero()[0].item<int64_t>();
  fail(ErrorCode::kInvalidArgument, "linear_cross_entropy: row ", row, " has label ",
       labels[row].item<int64_t>(), ", expected 0 to ", vocabulary - 1, ", or ", kIgnoredLabel,
       " for none.");
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& labels, const at::Tensor& loss_gradient,
                                int64_t chunk_rows) {
  check(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1) &&
            labels.dim() == 1 && labels.size(0) == hidden.size(0) && chunk_rows > 0,
        ErrorCode::kInvalidArgument, "linear_cross_entropy: hidden ", hidden.sizes(), ", weight ",
        weight.sizes(), ", labels ", labels.sizes(), ", chunk_rows ", chunk_rows,
        "; expected [rows, n], [vocabulary, n], [rows] and a positive chunk.");
  if (labels.is_cpu()) check_labels(labels, weight.size(0));
  return LinearCrossEntropy::apply(
      hidden, weight, labels, loss_gradient.defined() ? std::optional(loss_gradient) : std::nullopt,
      chunk_rows, at::GradMode::is_enabled());
}

}  // namespace tessera::ops
