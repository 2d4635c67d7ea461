// SPDX-License-Identifier: MIT
#include "lib/data/collate.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "tessera/core/real_tokens.h"

namespace tessera {

int64_t rounded_up(int64_t length, int64_t multiple) {
  return (length + multiple - 1) / multiple * multiple;
}

bool masked_only_at_end(const TokenRow& row, Task task) {
  const auto& mask = row.attention_mask;
  const auto real_end = std::find(mask.begin(), mask.end(), 0);
  if (std::find(real_end, mask.end(), 1) != mask.end()) return false;
  if (task == Task::kClassification) return true;
  for (auto token = static_cast<size_t>(real_end - mask.begin()); token < mask.size(); ++token) {
    if (row.label_at(token) != kIgnoredLabel) return false;
  }
  return true;
}

MicroBatch collate(Task task, const std::vector<std::optional<TokenRow>>& rows,
                   const DataLoaderOptions& options) {
  const bool causal = task == Task::kCausal;
  const auto count = static_cast<int64_t>(rows.size());
  int64_t length = std::max(options.pad_to, int64_t{1});
  for (const auto& row : rows) {
    if (row) length = std::max(length, static_cast<int64_t>(row->input_ids.size()));
  }
  length = rounded_up(length, options.pad_to_multiple_of);
  MicroBatch batch;
  const auto in_memory = [&](at::ScalarType dtype) {
    return at::TensorOptions(dtype).pinned_memory(options.pinned);
  };
  batch.input_ids = at::full({count, length}, options.pad_id, in_memory(at::kLong));
  batch.labels = causal ? at::full({count, length}, kIgnoredLabel, in_memory(at::kLong))
                        : at::full({count}, kIgnoredLabel, in_memory(at::kLong));
  at::Tensor mask = at::zeros({count, length}, in_memory(at::kBool));
  std::vector<int64_t> added;  // rows that fill the batch
  auto* ids = batch.input_ids.mutable_data_ptr<int64_t>();
  auto* labels = batch.labels.mutable_data_ptr<int64_t>();
  auto* attended = mask.mutable_data_ptr<bool>();
  bool padding = false;
  // Supervised padding is affected by the mask.
  bool mask_matters = !options.causal_attention || (causal && options.supervise_padding);
  for (int64_t b = 0; b < count; ++b, ids += length, attended += length) {
    const std::optional<TokenRow>& row = rows[static_cast<size_t>(b)];
    const int64_t tokens = row ? static_cast<int64_t>(row->input_ids.size()) : 1;
    const int64_t first = options.padding_side == PaddingSide::kLeft ? length - tokens : 0;
    padding = padding || tokens < length;
    mask_matters = mask_matters || (tokens < length && first > 0 && row.has_value());
    if (!row) {
      // One attended token, different from padding for models that search for the last real token.
      ids[first] = options.pad_id == 0 ? 1 : 0;
      attended[first] = true;
      added.push_back(b);
      continue;
    }
    ++batch.sample_count;
    std::copy(row->input_ids.begin(), row->input_ids.end(), ids + first);
    if (row->attention_mask.empty()) {
      std::fill_n(attended + first, tokens, true);
    } else {
      std::copy(row->attention_mask.begin(), row->attention_mask.end(), attended + first);
      padding = padding || std::count(attended + first, attended + first + tokens, false) > 0;
      mask_matters = mask_matters || !masked_only_at_end(*row, task);
    }
    if (!causal) {
      labels[b] = row->label;
      continue;
    }
    // Position s predicts the token at s + 1 of the padded row.
    int64_t* targets = labels + b * length;
    const auto label_at = [&](int64_t s) -> int64_t {
      const bool real = s >= first && s < first + tokens;
      if (real) return row->label_at(static_cast<size_t>(s - first));
      return options.supervise_padding ? options.pad_id : kIgnoredLabel;
    };
    for (int64_t s = 0; s + 1 < length; ++s) targets[s] = label_at(s + 1);
  }
  if ((padding && mask_matters) || options.always_attention_mask) batch.attention_mask = mask;
  if (options.mark_padding && (padding || !added.empty())) {
    at::Tensor real = at::empty_like(mask, in_memory(at::kBool)).copy_(mask);
    for (const int64_t row : added) real[row].fill_(false);
    batch.extra[kRealTokens] = real;
  }
  batch.token_count = count * length;
  const auto* all = batch.labels.const_data_ptr<int64_t>();
  batch.target_count =
      batch.labels.numel() - std::count(all, all + batch.labels.numel(), int64_t{kIgnoredLabel});
  if (causal) choose_head_positions(batch);
  return batch;
}

}  // namespace tessera
