#include "tessera/core/micro_batch.h"

#include <ATen/ATen.h>

#include <utility>

#include "tessera/core/error.h"

namespace tessera {
namespace {

int64_t count_targets(const at::Tensor& labels, int64_t rows) {
  if (!labels.defined() || !at::isIntegralType(labels.scalar_type(), /*includeBool=*/true)) {
    return rows;
  }
  return labels.ne(kIgnoredLabel).sum().item<int64_t>();
}

}  // namespace

MicroBatch MicroBatch::to(at::Device device) const {
  auto move = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(device, /*non_blocking=*/true) : tensor;
  };
  MicroBatch moved = *this;
  moved.input_ids = move(input_ids);
  moved.labels = move(labels);
  moved.attention_mask = move(attention_mask);
  moved.loss_gradient = move(loss_gradient);
  return moved;
}

MicroBatch make_micro_batch(at::Tensor inputs, at::Tensor labels) {
  check(inputs.defined() && inputs.dim() > 0, ErrorCode::kInvalidArgument,
        "make_micro_batch: inputs need a dimension of rows, but they are ",
        inputs.defined() ? "a scalar" : "undefined");
  check(!labels.defined() || (labels.dim() > 0 && labels.size(0) == inputs.size(0)),
        ErrorCode::kInvalidArgument, "make_micro_batch: inputs of shape ", inputs.sizes(),
        " and labels of shape ", labels.defined() ? labels.sizes() : at::IntArrayRef(),
        "; dimension 0 of both is the rows");
  MicroBatch batch;
  batch.sample_count = inputs.size(0);
  batch.token_count = inputs.scalar_type() == at::kLong ? inputs.numel() : inputs.size(0);
  batch.target_count = count_targets(labels, inputs.size(0));
  batch.input_ids = std::move(inputs);
  batch.labels = std::move(labels);
  return batch;
}

void check_counts(const MicroBatch& micro_batch) {
  check(micro_batch.target_count >= 0, ErrorCode::kInvalidArgument, "micro-batch: target_count is ",
        micro_batch.target_count);
  const at::Tensor& labels = micro_batch.labels;
  if (micro_batch.target_count > 0 || !labels.defined() || labels.numel() == 0) return;
  const int64_t targets = count_targets(labels, labels.dim() > 0 ? labels.size(0) : 1);
  check(targets == 0, ErrorCode::kInvalidArgument, "micro-batch: target_count is 0, but labels of ",
        labels.scalar_type(), " and shape ", labels.sizes(), " hold ", targets,
        " targets, over which the loss is to be the mean; make it with make_micro_batch(inputs, "
        "labels), which counts them, or set target_count");
}

}  // namespace tessera
