// Embedding and loss whose table is cut by rows of the vocabulary.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "lib/model/tensor_collectives.h"
#include "tessera/core/error.h"
#include "tessera/ops/functional.h"
#include "tessera/ops/kernels.h"

namespace tessera {
namespace {

using detail::GradientSink;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Chunks {
  at::Tensor hidden, weight, labels;  // labels of the whole vocabulary
  int64_t vocabulary, chunk_rows;
};

// Labels as rows of the rank's part of the table; those of other ranks become its size.
at::Tensor to_own_rows(const at::Tensor& labels, int64_t first, int64_t size) {
  const at::Tensor own = labels - first;
  const at::Tensor elsewhere = own.lt(0).logical_or_(own.ge(size));
  return own.masked_fill_(elsewhere, size).masked_fill_(labels.eq(kIgnoredLabel), kIgnoredLabel);
}

// As run_chunks of ops::linear_cross_entropy; hidden_gradient receives this rank's part.
at::Tensor run_chunks(const Chunks& in, const TensorAxis& axis, const at::Tensor& scale,
                      const at::Tensor& hidden_gradient, const at::Tensor& weight_gradient) {
  const int64_t rows = in.hidden.size(0), columns = in.weight.size(0);
  const int64_t first_column = axis.rank() * columns;
  const int64_t real = std::min(columns, in.vocabulary - first_column);
  const at::Tensor own_labels = to_own_rows(in.labels, first_column, columns);
  const at::Tensor ignored = in.labels.eq(kIgnoredLabel);
  const at::Tensor outside =
      in.labels.lt(0).logical_or_(in.labels.ge(in.vocabulary)).logical_and_(ignored.logical_not());
  const auto options = in.hidden.options().dtype(at::kFloat);
  const at::Tensor row_loss = at::empty({rows}, options);
  for (int64_t first = 0; first < rows; first += in.chunk_rows) {
    const int64_t count = std::min(in.chunk_rows, rows - first);
    const auto chunk = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
    const at::Tensor logits = ops::logits_forward(chunk(in.hidden), in.weight);
    if (real < columns) {
      logits.narrow(1, real, columns - real).fill_(-std::numeric_limits<float>::infinity());
    }
    const at::Tensor own = at::empty({2, count}, options);
    ops::cross_entropy_statistics(logits, chunk(own_labels), own);
    const at::Tensor all = at::empty({axis.size(), 2, count}, options);
    axis.comm().all_gather(all, own).wait();
    const at::Tensor log_sum_exp = all.select(1, 0).logsumexp(0).masked_fill_(
        chunk(outside), std::numeric_limits<double>::quiet_NaN());
    chunk(row_loss).copy_(
        (log_sum_exp - all.select(1, 1).sum(0)).masked_fill_(chunk(ignored), 0.0));
    if (!hidden_gradient.defined() && !weight_gradient.defined()) continue;
    ops::cross_entropy_gradient_(logits, chunk(own_labels), log_sum_exp, scale);
    if (weight_gradient.defined()) {
      ops::linear_backward_weight(logits, chunk(in.hidden), weight_gradient);
    }
    if (hidden_gradient.defined()) {
      ops::linear_backward_input_out(logits, in.weight, chunk(hidden_gradient));
    }
  }
  return row_loss.sum();
}

class VocabularyLoss : public Function<VocabularyLoss> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& labels,
                            const std::optional<at::Tensor>& loss_gradient, int64_t vocabulary,
                            const TensorAxis& axis, int64_t chunk_rows, bool enabled) {
    const Chunks in{hidden.contiguous(), weight.detach(), labels.contiguous(), vocabulary,
                    chunk_rows};
    const bool given = loss_gradient.has_value();
    const bool direct = given && weight.grad().defined();
    at::Tensor hidden_gradient, weight_gradient;
    if (enabled && hidden.requires_grad()) hidden_gradient = at::empty_like(in.hidden);
    if (enabled && weight.requires_grad()) {
      weight_gradient = direct ? weight.grad() : at::zeros_like(in.weight);
    }
    const at::Tensor scale =
        given ? *loss_gradient : at::ones({}, hidden.options().dtype(at::kFloat));
    const at::Tensor loss = run_chunks(in, axis, scale, hidden_gradient, weight_gradient);
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
    return {saved[0], saved[1], {}, {}, {}, {}, {}, {}};
  }
};

void check_ids(const at::Tensor& ids, int64_t vocabulary, bool may_be_ignored, const char* what) {
  if (!ids.is_cpu()) return;
  at::Tensor wrong = ids.lt(0).logical_or_(ids.ge(vocabulary));
  if (may_be_ignored) wrong.logical_and_(ids.ne(kIgnoredLabel));
  if (!wrong.any().item<bool>()) return;
  fail(ErrorCode::kInvalidArgument, what, " ", ids.masked_select(wrong)[0].item<int64_t>(),
       " is not in the vocabulary, expected 0 to ", vocabulary - 1,
       may_be_ignored ? concat(", or ", kIgnoredLabel, " for none") : std::string());
}

}  // namespace

at::Tensor vocab_parallel_embedding(const at::Tensor& ids, const at::Tensor& weight,
                                    int64_t vocabulary, const TensorAxis& axis) {
  if (axis.size() == 1) return ops::embedding(ids, weight);
  check_ids(ids, vocabulary, /*may_be_ignored=*/false, "token id");
  const int64_t size = weight.size(0);
  const at::Tensor own = ids - axis.rank() * size;
  const at::Tensor here = own.ge(0).logical_and_(own.lt(size));
  // Tokens of other ranks look some row up and forget it: spread, so that no row's gradient has
  // many terms. Ids outside the vocabulary fail as they do in a whole table.
  const at::Tensor outside = ids.lt(0).logical_or_(ids.ge(vocabulary));
  const at::Tensor rows = own.remainder(size).masked_fill_(outside, size);
  const at::Tensor part =
      ops::embedding(rows, weight).masked_fill(here.logical_not().unsqueeze(-1), 0.0);
  return leave_tensor_ranks(part, axis);
}

at::Tensor vocab_parallel_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                        const at::Tensor& labels, const at::Tensor& loss_gradient,
                                        int64_t vocabulary, const TensorAxis& axis,
                                        int64_t chunk_rows) {
  if (axis.size() == 1) {
    return ops::linear_cross_entropy(x.flatten(0, -2), weight, labels.flatten(), loss_gradient,
                                     chunk_rows);
  }
  check_ids(labels, vocabulary, /*may_be_ignored=*/true, "label");
  const at::Tensor hidden = enter_tensor_ranks(x, labels.sizes(), axis).flatten(0, -2);
  check(hidden.size(0) == labels.numel() && hidden.size(1) == weight.size(1) && chunk_rows > 0,
        ErrorCode::kInvalidArgument, "vocab_parallel_cross_entropy: hidden ", hidden.sizes(),
        ", weight ", weight.sizes(), ", labels ", labels.sizes(), ", chunk_rows ", chunk_rows,
        "; expected [rows, n], [vocabulary / ranks, n], one label a row and a positive chunk.");
  return VocabularyLoss::apply(
      hidden, weight, labels.flatten(),
      loss_gradient.defined() ? std::optional(loss_gradient) : std::nullopt, vocabulary, axis,
      chunk_rows, at::GradMode::is_enabled());
}

VocabParallelEmbedding::VocabParallelEmbedding(const BuildContext& context, const std::string& name,
                                               const at::Tensor& weight)
    : axis_(context), vocabulary_(weight.size(0)) {
  parameters_.push_back(
      cut_parameter(name + ".weight", weight, true, {.dim = 0, .padded = true}, axis_));
}

at::Tensor VocabParallelEmbedding::forward(const at::Tensor& ids) const {
  return vocab_parallel_embedding(ids, parameters_[0].tensor, vocabulary_, axis_);
}

}  // namespace tessera
