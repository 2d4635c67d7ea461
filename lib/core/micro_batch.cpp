// SPDX-License-Identifier: MIT
#include "tessera/core/micro_batch.h"

#include <ATen/ATen.h>

#include <algorithm>
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

int64_t PackedRows::longest() const { return *std::ranges::max_element(lengths); }

PackedRows make_packed_rows(std::vector<int64_t> lengths, int64_t sequence, bool pinned) {
  const auto in_memory = [&](at::ScalarType dtype) {
    return at::TensorOptions(dtype).pinned_memory(pinned);
  };
  PackedRows rows;
  rows.offsets = at::empty({static_cast<int64_t>(lengths.size()) + 1}, in_memory(at::kInt));
  std::vector<int64_t> positions;
  std::vector<int32_t> first_keys;
  auto* offset = rows.offsets.mutable_data_ptr<int32_t>();
  *offset = 0;
  for (const int64_t length : lengths) {
    const int64_t first = *offset % sequence;
    check(length > 0 && first + length <= sequence, ErrorCode::kInvalidArgument,
          "packed rows: a row of ", length, " tokens at place ", first, " of a sequence of ",
          sequence);
    for (int64_t i = 0; i < length; ++i) positions.push_back(i);
    first_keys.insert(first_keys.end(), static_cast<size_t>(length), static_cast<int32_t>(first));
    offset[1] = offset[0] + static_cast<int32_t>(length);
    ++offset;
  }
  check(*offset > 0, ErrorCode::kInvalidArgument, "packed rows: there are none");
  const int64_t sequences = (*offset + sequence - 1) / sequence;
  for (int64_t at = *offset; at < sequences * sequence; ++at) {
    first_keys.push_back(static_cast<int32_t>(at % sequence));
  }
  const auto shaped = [&](const auto& values, at::ScalarType dtype, int64_t count) {
    using Value = typename std::decay_t<decltype(values)>::value_type;
    const auto columns = static_cast<int64_t>(values.size()) / count;
    const at::Tensor tensor = at::empty({count, columns}, in_memory(dtype));
    std::ranges::copy(values, tensor.mutable_data_ptr<Value>());
    return tensor;
  };
  rows.positions = shaped(positions, at::kLong, *offset % sequence == 0 ? sequences : 1);
  rows.first_keys = shaped(first_keys, at::kInt, sequences);
  rows.lengths = std::move(lengths);
  rows.sequence = sequence;
  rows.position_count = rows.longest();
  return rows;
}

MicroBatch MicroBatch::to(at::Device device) const {
  auto move = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(device, /*non_blocking=*/true) : tensor;
  };
  MicroBatch moved = *this;
  moved.input_ids = move(input_ids);
  moved.labels = move(labels);
  for (auto& [name, tensor] : moved.extra) tensor = move(tensor);
  moved.attention_mask = move(attention_mask);
  moved.packed.offsets = move(packed.offsets);
  moved.packed.positions = move(packed.positions);
  moved.packed.first_keys = move(packed.first_keys);
  moved.head_positions = move(head_positions);
  moved.decode_state.lengths = move(decode_state.lengths);
  return moved;
}

const at::Tensor& MicroBatch::get(const std::string& name) const {
  const auto found = extra.find(name);
  if (found != extra.end()) return found->second;
  std::string names;
  for (const auto& item : extra) names += concat(names.empty() ? "" : ", ", "\"", item.first, "\"");
  fail(ErrorCode::kInvalidArgument, "micro-batch: it has no tensor \"", name, "\" (there is ",
       names.empty() ? "none" : names, "); give it to make_micro_batch(inputs, labels, {{\"", name,
       "\", tensor}})");
}

MicroBatch make_micro_batch(at::Tensor inputs, at::Tensor labels,
                            std::map<std::string, at::Tensor> extra) {
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
  batch.extra = std::move(extra);
  return batch;
}

void choose_head_positions(MicroBatch& micro_batch, int64_t multiple) {
  const at::Tensor supervised = micro_batch.labels.flatten().ne(kIgnoredLabel);
  const int64_t all = supervised.numel(), targets = supervised.sum().item<int64_t>();
  const int64_t chosen = (std::max<int64_t>(targets, 1) + multiple - 1) / multiple * multiple;
  if (128 * chosen > 127 * all) return;
  const at::Tensor others = supervised.logical_not().nonzero().narrow(0, 0, chosen - targets);
  micro_batch.head_positions =
      at::empty({chosen},
                micro_batch.labels.options().pinned_memory(micro_batch.labels.is_pinned()))
          .copy_(at::cat({supervised.nonzero(), others}).squeeze(1));
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
