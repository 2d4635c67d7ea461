// SPDX-License-Identifier: MIT
#include "python/batches.h"

#include <ATen/ATen.h>

#include <optional>
#include <string>

#include "lib/data/collate.h"
#include "python/modes.h"
#include "python/tensors.h"
#include "tessera/core/error.h"

namespace tessera::python {
namespace {

template <typename... Parts>
void expect(bool condition, const Parts&... parts) {
  check(condition, ErrorCode::kInvalidArgument, parts...);
}

// int32 or uint8, contiguous, on the host.
at::Tensor numbers(nb::handle array, const BatchRules& rules, const std::string& what,
                   at::ScalarType as) {
  const at::Tensor given = tensor_of(array, rules.device, what);
  const at::ScalarType dtype = given.scalar_type();
  expect(at::isIntegralType(dtype, /*includeBool=*/as == at::kByte), what, " is of ",
         at::toString(dtype), "; it must be of integers",
         as == at::kByte ? " or bool" : ", such as int64");
  if (as == at::kInt && given.numel() > 0) {
    const at::Tensor host = given.cpu().to(at::kLong);  // unsigned types have no min()
    const auto least = host.min().item<int64_t>(), most = host.max().item<int64_t>();
    expect(least >= INT32_MIN && most <= INT32_MAX, what, " has ", least < INT32_MIN ? least : most,
           ", which is no id");
    return host.to(at::kInt).contiguous();
  }
  return (as == at::kByte ? given.cpu().ne(0) : given.cpu()).to(as).contiguous();
}

void check_range(const at::Tensor& values, int64_t end, bool may_be_ignored,
                 const std::string& what, const std::string& of) {
  const auto* data = values.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    const int64_t value = data[i];
    if (may_be_ignored && value == kIgnoredLabel) continue;
    expect(value >= 0 && value < end, what, " has ", value, " in row ",
           i / (values.numel() / values.size(0)), "; ", of, " go from 0 to ", end - 1,
           may_be_ignored ? concat(", and ", kIgnoredLabel, " is no label") : std::string());
  }
}

std::span<const int32_t> row_of(const at::Tensor& values, int64_t row) {
  const int64_t length = values.size(1);
  return {values.const_data_ptr<int32_t>() + row * length, static_cast<size_t>(length)};
}

MicroBatch batch_of(const nb::dict& batch, const BatchRules& rules, const std::string& where) {
  const bool causal = rules.head == ModelHead::kCausal;
  for (const auto& [key, value] : batch) {
    const std::string name = nb::str(key).c_str();
    expect(name == "input_ids" || name == "labels" || name == "attention_mask", where,
           ": unknown key \"", name, "\"; a batch has input_ids, labels and attention_mask");
  }
  expect(batch.contains("input_ids"), where, " has no input_ids");
  expect(causal || batch.contains("labels"), where, " has no labels, one a row");
  const at::Tensor ids = numbers(batch["input_ids"], rules, where + ": input_ids", at::kInt);
  expect(ids.dim() == 2 && ids.numel() > 0, where, ": input_ids have shape ", ids.sizes(),
         "; they must be [rows, tokens]");
  const int64_t rows = ids.size(0), tokens = ids.size(1);
  expect(rules.config.max_positions == 0 || tokens <= rules.config.max_positions, where,
         ": input_ids have ", tokens, " tokens a row; model ", rules.config.name, " has ",
         rules.config.max_positions, " positions");
  check_range(ids, rules.config.vocabulary, /*may_be_ignored=*/false, where + ": input_ids",
              "ids of the model");
  std::optional<at::Tensor> labels, mask;
  if (batch.contains("labels")) {
    labels = numbers(batch["labels"], rules, where + ": labels", at::kInt);
    const bool fits =
        causal ? labels->sizes() == ids.sizes() : labels->sizes() == at::IntArrayRef{rows};
    expect(fits, where, ": labels have shape ", labels->sizes(), "; ",
           causal ? "they must have that of input_ids, " : "they must be one a row, ",
           causal ? ids.sizes() : at::IntArrayRef(ids.sizes().data(), 1));
    check_range(*labels, causal ? rules.config.vocabulary : rules.num_labels, true,
                where + ": labels", causal ? "ids of the model" : "classes");
  }
  if (batch.contains("attention_mask")) {
    mask = numbers(batch["attention_mask"], rules, where + ": attention_mask", at::kByte);
    expect(mask->sizes() == ids.sizes(), where, ": attention_mask has shape ", mask->sizes(),
           "; it must have that of input_ids, ", ids.sizes());
    const at::Tensor real = mask->sum(1).to(at::kLong);
    expect(real.min().item<int64_t>() > 0, where, ": attention_mask leaves row ",
           real.argmin().item<int64_t>(), " no token");
  }
  if (causal && !labels)
    labels = mask ? ids.masked_fill(mask->eq(0), static_cast<int32_t>(kIgnoredLabel)) : ids;
  std::vector<std::optional<TokenRow>> all;
  for (int64_t row = 0; row < rows; ++row) {
    TokenRow one{.input_ids = row_of(ids, row)};
    if (mask)
      one.attention_mask = {mask->const_data_ptr<uint8_t>() + row * tokens,
                            static_cast<size_t>(tokens)};
    if (causal) {
      one.labels = row_of(*labels, row);
    } else {
      one.label = labels->const_data_ptr<int32_t>()[row];
    }
    all.emplace_back(one);
  }
  const bool on_gpu = !rules.device.is_cpu();
  return collate(causal ? Task::kCausal : Task::kClassification, all,
                 {.pad_id = rules.config.pad_token.value_or(0),
                  .pad_token = rules.config.pad_token,
                  .always_attention_mask = !causal && !rules.config.pad_token,
                  .pinned = on_gpu})
      .to(rules.device);
}

}  // namespace

std::vector<MicroBatch> batches_of(nb::handle batches, const BatchRules& rules) {
  const OwnModes modes;
  if (nb::isinstance<nb::dict>(batches)) {
    return {batch_of(nb::cast<nb::dict>(batches), rules, "the batch")};
  }
  const bool several = nb::isinstance<nb::list>(batches) || nb::isinstance<nb::tuple>(batches);
  expect(several, "a batch is a dictionary of arrays, or a list of them (micro-batches), not ",
         nb::type_name(batches.type()).c_str());
  std::vector<MicroBatch> all;
  for (const nb::handle one : nb::iter(batches)) {
    const std::string where = concat("micro-batch ", all.size());
    expect(nb::isinstance<nb::dict>(one), where, " is of type ", nb::type_name(one.type()).c_str(),
           "; it must be a dictionary of arrays");
    all.push_back(batch_of(nb::cast<nb::dict>(one), rules, where));
  }
  expect(!all.empty(), "there is no micro-batch in the list; a step needs one at least");
  return all;
}

}  // namespace tessera::python
