// SPDX-License-Identifier: MIT
// Vocab-parallel embedding and loss.
#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "lib/ops/saved_value.h"
#include "tessera/comm/communicator.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/functional.h"
#include "tessera/ops/kernels.h"

namespace tessera {
namespace {

// Labels as rows of the rank's slice of the table; its size for other ranks' rows, -1 for none.
at::Tensor to_own_rows(const at::Tensor& labels, int64_t first, int64_t size, int64_t vocabulary) {
  const at::Tensor own = labels - first;
  const at::Tensor elsewhere = own.lt(0).logical_or_(own.ge(size));
  const at::Tensor nowhere = labels.lt(0).logical_or_(labels.ge(vocabulary));
  return own.masked_fill_(elsewhere, size)
      .masked_fill_(nowhere, -1)
      .masked_fill_(labels.eq(kIgnoredLabel), kIgnoredLabel);
}

// Loss of a rank's columns of the logits, with statistics gathered over the whole vocabulary.
ops::LossOfLogits loss_of_columns(const at::Tensor& labels, int64_t columns, int64_t vocabulary,
                                  const TensorAxis& axis) {
  const int64_t first_column = axis.rank() * columns;
  const int64_t real = std::min(columns, vocabulary - first_column);
  return [=, all_labels = to_own_rows(labels, first_column, columns, vocabulary)](
             const at::Tensor& logits, int64_t first, const at::Tensor& scale,
             const at::Tensor& row_loss) {
    const int64_t count = logits.size(0);
    const at::Tensor own_labels = all_labels.narrow(0, first, count);
    if (real < columns) {
      logits.narrow(1, real, columns - real).fill_(-std::numeric_limits<float>::infinity());
    }
    const at::Tensor own = at::empty({2, count}, row_loss.options());
    ops::cross_entropy_statistics(logits, own_labels, own);
    const at::Tensor all = at::empty({axis.size(), 2, count}, row_loss.options());
    axis.comm().all_gather(all, own).wait();
    ops::cross_entropy_gradient_(logits, own_labels, all, scale, row_loss);
  };
}

// The loss of a whole table's logits.
ops::LossOfLogits loss_of_whole(const at::Tensor& labels) {
  return [labels = labels.contiguous()](const at::Tensor& logits, int64_t first,
                                        const at::Tensor& scale, const at::Tensor& row_loss) {
    ops::cross_entropy_(logits, labels.narrow(0, first, logits.size(0)), scale, row_loss);
  };
}

// The loss times each target's weight.
ops::LossOfLogits weighted(ops::LossOfLogits loss, const at::Tensor& weights) {
  return [loss = std::move(loss), weights](const at::Tensor& logits, int64_t first,
                                           const at::Tensor& scale, const at::Tensor& row_loss) {
    loss(logits, first, scale, row_loss);
    const at::Tensor own = weights.narrow(0, first, logits.size(0));
    row_loss.mul_(own);
    if (scale.defined()) logits.mul_(own.unsqueeze(1));
  };
}

// Identity, whose backward waits for the gradient's pending all-reduces.
class AwaitGradient : public torch::autograd::Function<AwaitGradient> {
 public:
  using Sums = std::shared_ptr<std::vector<Work>>;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Sums& sums) {
    save_value(context, "sums", sums);
    return x.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    for (Work& sum : *saved_value<Sums>(context, "sums")) sum.wait();
    return {gradients[0], {}};
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
                                    int64_t vocabulary, const TensorAxis& axis,
                                    const std::shared_ptr<DeferredEmbeddingRows>& deferred_rows) {
  if (axis.size() == 1) return ops::embedding(ids, weight, deferred_rows);
  check_ids(ids, vocabulary, /*may_be_ignored=*/false, "token id");
  const int64_t size = weight.size(0);
  const at::Tensor own = ids - axis.rank() * size;
  const at::Tensor here = own.ge(0).logical_and_(own.lt(size));
  // Other ranks' tokens look up some row, whose result is discarded. They are spread, so that no
  // row's gradient has many terms. Ids outside the vocabulary fail as in a whole table.
  const at::Tensor outside = ids.lt(0).logical_or_(ids.ge(vocabulary));
  const at::Tensor rows = own.remainder(size).masked_fill_(outside, size);
  const at::Tensor part =
      ops::embedding(rows, weight).masked_fill(here.logical_not().unsqueeze(-1), 0.0);
  return leave_tensor_ranks(part, axis);
}

at::Tensor vocab_parallel_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                        const LossTargets& of, const at::Tensor& loss_gradient,
                                        int64_t vocabulary, const TensorAxis& axis) {
  const at::Tensor &labels = of.labels, &weights = of.weights;
  const int64_t chunk_rows = of.chunk_rows;
  const auto chosen = [&positions = of.positions](const at::Tensor& rows) {
    return positions.defined() ? rows.index_select(0, positions) : rows;
  };
  const at::Tensor targets = chosen(labels.flatten());
  check(!weights.defined() || weights.numel() == targets.numel(), ErrorCode::kInvalidArgument,
        "vocab_parallel_cross_entropy: weights ", weights.sizes(), " for ", targets.numel(),
        " targets; expected one a target.");
  if (axis.size() == 1 && weights.defined()) {
    check_ids(targets, vocabulary, /*may_be_ignored=*/true, "label");
    return ops::linear_loss(chosen(x.flatten(0, -2)), weight, loss_gradient, chunk_rows,
                            weighted(loss_of_whole(targets), weights));
  }
  if (axis.size() == 1) {
    return ops::linear_cross_entropy(chosen(x.flatten(0, -2)), weight, targets, loss_gradient,
                                     chunk_rows);
  }
  check_ids(targets, vocabulary, /*may_be_ignored=*/true, "label");
  at::Tensor hidden;
  std::function<void(const at::Tensor&)> on_gradient;
  if (axis.sequence_parallel()) {
    hidden = chosen(gather_tokens(x, labels.sizes(), axis).flatten(0, -2));
  } else if (loss_gradient.defined()) {
    // A chunk's input-gradient all-reduce overlaps its weight gradient.
    const auto sums = std::make_shared<std::vector<Work>>();
    hidden = AwaitGradient::apply(chosen(x.flatten(0, -2)), sums);
    on_gradient = [sums, &comm = axis.comm()](const at::Tensor& rows) {
      sums->push_back(comm.all_reduce(rows));
    };
  } else {
    hidden = copy_to_tensor_ranks(chosen(x.flatten(0, -2)), axis);
  }
  check(hidden.size(0) == targets.numel(), ErrorCode::kInvalidArgument,
        "vocab_parallel_cross_entropy: hidden ", hidden.sizes(), ", labels ", labels.sizes(),
        "; expected one label a row.");
  // A chunk's logits have the size of those of a whole table.
  ops::LossOfLogits loss = loss_of_columns(targets, weight.size(0), vocabulary, axis);
  if (weights.defined()) loss = weighted(std::move(loss), weights);
  return ops::linear_loss(hidden, weight, loss_gradient, axis.size() * chunk_rows, loss,
                          on_gradient);
}

VocabParallelEmbedding::VocabParallelEmbedding(const BuildContext& context, const std::string& name,
                                               const at::Tensor& weight)
    : CutLayer(context), vocabulary_(weight.size(0)) {
  parameters_.push_back(
      cut_parameter(name + ".weight", weight, true, {.dim = 0, .padded = true}, axis_));
  parameters_.back().fp32_state = true;
}

at::Tensor VocabParallelEmbedding::forward(const at::Tensor& ids) const {
  return vocab_parallel_embedding(ids, parameters_[0].tensor, vocabulary_, axis_);
}

}  // namespace tessera
