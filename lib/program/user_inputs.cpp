// SPDX-License-Identifier: MIT
#include "lib/program/user_inputs.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera::program {
namespace {

constexpr const char* kMask = "attention_mask";

at::Tensor find_input(const std::vector<InputEntry>& inputs, size_t place,
                      const MicroBatch& micro_batch) {
  const std::string& name = inputs[place].name;
  const auto extra = micro_batch.extra.find(name);
  if (extra != micro_batch.extra.end()) return extra->second;
  if (place == 0 && micro_batch.input_ids.defined()) return micro_batch.input_ids;
  if (name == "labels" && micro_batch.labels.defined()) return micro_batch.labels;
  if (name == kMask && micro_batch.attention_mask.defined()) return micro_batch.attention_mask;
  if (name == kMask && micro_batch.input_ids.defined()) return at::ones_like(micro_batch.input_ids);
  return micro_batch.get(name);
}

std::string dims_text(const std::vector<InputEntry::Range>& dims) {
  std::string text;
  for (const InputEntry::Range& range : dims) {
    if (!text.empty()) text += ", ";
    if (range.least == range.most) {
      text += concat(range.least);
    } else if (range.most == std::numeric_limits<int64_t>::max()) {
      text += concat(range.least, " or more");
    } else {
      text += concat(range.least, " to ", range.most);
    }
  }
  return text;
}

}  // namespace

at::Tensor user_input(const std::string& block, const std::vector<InputEntry>& inputs, size_t place,
                      const MicroBatch& micro_batch) {
  const at::Tensor given = find_input(inputs, place, micro_batch);
  const std::vector<InputEntry::Range>& dims = inputs[place].dims;
  bool fits = static_cast<size_t>(given.dim()) == dims.size();
  for (size_t i = 0; fits && i < dims.size(); ++i) {
    const int64_t size = given.size(static_cast<int64_t>(i));
    fits = size >= dims[i].least && size <= dims[i].most;
  }
  check(fits, ErrorCode::kInvalidArgument, "block ", block, ": the input \"", inputs[place].name,
        "\" is ", given.sizes(), ", but the program was exported for [", dims_text(dims), "]");
  return given;
}

void check_mask(const std::string& block, const std::vector<InputEntry>& inputs,
                const at::Tensor& mask) {
  const bool taken = std::any_of(inputs.begin(), inputs.end(),
                                 [](const InputEntry& input) { return input.name == kMask; });
  check(taken || !mask.defined(), ErrorCode::kInvalidArgument, "block ", block,
        ": the micro-batch has an attention mask, which the program does not take; pad on "
        "the right (--padding_side right), or export the model with an attention_mask");
}

}  // namespace tessera::program
