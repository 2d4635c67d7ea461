// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "lib/ops/autograd.h"
#include "tessera/core/error.h"
#include "tessera/core/micro_batch.h"
#include "tessera/ops/functional.h"
#include "tessera/ops/kernels.h"

namespace tessera::ops {
namespace {

// Rows of the next chunk. The last chunk is not small, so that GPUs meet few sizes.
int64_t rows_of_next(int64_t left, int64_t chunk_rows) {
  if (left <= chunk_rows || 2 * left >= 3 * chunk_rows) return std::min(left, chunk_rows);
  constexpr int64_t kMultiple = 64;
  return std::min(chunk_rows, (left / 2 + kMultiple - 1) / kMultiple * kMultiple);
}

class LinearLoss : public Function<LinearLoss> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight,
                            const std::optional<at::Tensor>& loss_gradient, int64_t chunk_rows,
                            const LossOfLogits& loss,
                            const std::function<void(const at::Tensor&)>& on_gradient,
                            bool enabled) {
    const at::Tensor rows = hidden.contiguous(), table = weight.detach();
    const bool given = loss_gradient.has_value();
    const bool direct = given && weight.grad().defined();
    at::Tensor hidden_gradient, weight_gradient, scale;
    if (enabled && hidden.requires_grad()) hidden_gradient = at::empty_like(rows);
    if (enabled && weight.requires_grad()) {
      weight_gradient = direct ? weight.grad() : at::zeros_like(table);
    }
    const auto fp32 = hidden.options().dtype(at::kFloat);
    if (hidden_gradient.defined() || weight_gradient.defined()) {
      scale = given ? *loss_gradient : at::ones({}, fp32);
    }
    const at::Tensor row_loss = at::empty({rows.size(0)}, fp32);
    for (int64_t first = 0, count = 0; first < rows.size(0); first += count) {
      const int64_t before = count;
      count = rows_of_next(rows.size(0) - first, chunk_rows);
      if (rows.is_meta() && count == before) continue;  // reuses the previous chunk's memory
      const auto chunk = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
      const at::Tensor logits = logits_forward(chunk(rows), table);
      loss(logits, first, scale, chunk(row_loss));
      if (hidden_gradient.defined()) {
        linear_backward_input_out(logits, table, chunk(hidden_gradient));
        if (on_gradient) on_gradient(chunk(hidden_gradient));
      }
      if (weight_gradient.defined()) linear_backward_weight(logits, chunk(rows), weight_gradient);
    }
    context->saved_data["given"] = given;
    context->save_for_backward({hidden_gradient, direct ? at::Tensor() : weight_gradient});
    return row_loss.sum();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    variable_list saved = context->get_saved_variables();
    if (!context->saved_data["given"].toBool()) {
      for (at::Tensor& gradient : saved) {
        if (gradient.defined()) gradient = gradient * gradients[0].to(gradient.scalar_type());
      }
    }
    return {saved[0], saved[1], {}, {}, {}, {}, {}};
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
  check(hidden.dim() == 2 && weight.dim() == 2 && labels.dim() == 1 &&
            labels.size(0) == hidden.size(0),
        ErrorCode::kInvalidArgument, "linear_cross_entropy: hidden ", hidden.sizes(), ", weight ",
        weight.sizes(), ", labels ", labels.sizes(),
        "; expected [rows, n], [vocabulary, n] and [rows].");
  if (labels.is_cpu()) check_labels(labels, weight.size(0));
  return linear_loss(
      hidden, weight, loss_gradient, chunk_rows,
      [labels = labels.contiguous()](const at::Tensor& logits, int64_t first,
                                     const at::Tensor& scale, const at::Tensor& row_loss) {
        cross_entropy_(logits, labels.narrow(0, first, logits.size(0)), scale, row_loss);
      });
}

at::Tensor linear_loss(const at::Tensor& hidden, const at::Tensor& weight,
                       const at::Tensor& loss_gradient, int64_t chunk_rows,
                       const LossOfLogits& loss,
                       const std::function<void(const at::Tensor& rows)>& on_gradient) {
  check(
      hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1) && chunk_rows > 0,
      ErrorCode::kInvalidArgument, "linear_loss: hidden ", hidden.sizes(), ", weight ",
      weight.sizes(), ", chunk_rows ", chunk_rows,
      "; expected [rows, n], [vocabulary, n] and a positive chunk.");
  return LinearLoss::apply(hidden, weight,
                           loss_gradient.defined() ? std::optional(loss_gradient) : std::nullopt,
                           chunk_rows, loss, on_gradient, at::GradMode::is_enabled());
}

}  // namespace tessera::ops
