// SPDX-License-Identifier: MIT
#include "python/batches.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "lib/core/joined.h"
#include "lib/data/collate.h"
#include "python/modes.h"
#include "python/tensors.h"
#include "tessera/core/error.h"
#include "tessera/model/target_weights.h"

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

// A batch of a language model, checked, on the host.
struct Arrays {
  at::Tensor ids;                             // int32 [rows, tokens]
  std::optional<at::Tensor> labels, mask;     // int32, uint8
  std::optional<at::Tensor> weights;          // fp32, like ids
  std::optional<at::Tensor> document_starts;  // bool, like ids: packed rows
  std::map<std::string, at::Tensor> extra;    // further inputs of a program
};

constexpr const char* kKeys[] = {"input_ids", "labels",       "attention_mask",
                                 "weights",   "position_ids", "document_ids"};

void check_keys(const nb::dict& batch, const BatchRules& rules, const std::string& where) {
  for (const auto& [key, value] : batch) {
    const std::string name = nb::str(key).c_str();
    const bool known = std::ranges::find(kKeys, std::string_view(name)) != std::end(kKeys) ||
                       (rules.program && rules.program->takes(name));
    expect(known, where, ": unknown key \"", name,
           "\"; a batch has input_ids, labels, attention_mask, weights, position_ids and "
           "document_ids");
  }
}

void check_like(const at::Tensor& values, at::IntArrayRef shape, const std::string& what) {
  expect(values.sizes() == shape, what, " has shape ", values.sizes(),
         "; it must have that of input_ids, ", shape);
}

at::Tensor labels_of(nb::handle array, const at::Tensor& ids, const BatchRules& rules,
                     const std::string& where) {
  const bool causal = rules.head == ModelHead::kCausal;
  const at::Tensor labels = numbers(array, rules, where + ": labels", at::kInt);
  const int64_t rows = ids.size(0);
  const bool fits =
      causal ? labels.sizes() == ids.sizes() : labels.sizes() == at::IntArrayRef{rows};
  expect(fits, where, ": labels have shape ", labels.sizes(), "; ",
         causal ? "they must have that of input_ids, " : "they must be one a row, ",
         causal ? ids.sizes() : at::IntArrayRef(ids.sizes().data(), 1));
  check_range(labels, causal ? rules.config.vocabulary : rules.num_labels, true, where + ": labels",
              causal ? "ids of the model" : "classes");
  return labels;
}

at::Tensor weights_of(nb::handle array, const at::Tensor& ids, const BatchRules& rules,
                      const std::string& what) {
  expect(rules.head == ModelHead::kCausal, what, " are of tokens; this model classifies rows");
  const at::Tensor given = tensor_of(array, rules.device, what);
  expect(given.is_floating_point(), what, " are of ", at::toString(given.scalar_type()),
         "; they must be of a floating dtype, such as float32");
  check_like(given, ids.sizes(), what);
  const at::Tensor weights = given.cpu().to(at::kFloat).contiguous();
  expect(weights.isfinite().all().item<bool>(), what, " hold infinite numbers or NaN");
  return weights;
}

// True where a document begins: at position 0, or where the id is another one than before.
at::Tensor document_starts(const nb::dict& batch, const at::Tensor& ids, const BatchRules& rules,
                           const std::string& where) {
  const bool by_position = batch.contains("position_ids");
  expect(!(by_position && batch.contains("document_ids")), where,
         " has position_ids and document_ids; one of them says where documents begin");
  expect(rules.head == ModelHead::kCausal, where,
         ": packed rows are for causal models; give one row a sequence for classes");
  const std::string name = by_position ? "position_ids" : "document_ids";
  const at::Tensor given = numbers(batch[name.c_str()], rules, where + ": " + name, at::kInt);
  check_like(given, ids.sizes(), where + ": " + name);
  at::Tensor starts = at::ones(ids.sizes(), at::kBool);
  const int64_t tokens = ids.size(1);
  const at::Tensor before = given.narrow(1, 0, tokens - 1), after = given.narrow(1, 1, tokens - 1);
  starts.narrow(1, 1, tokens - 1).copy_(by_position ? after.eq(0) : after.ne(before));
  if (!by_position) return starts;
  const at::Tensor counted = after.eq(before + 1).logical_or(after.eq(0));
  expect(given.select(1, 0).eq(0).all().item<bool>() && counted.all().item<bool>(), where,
         ": position_ids must count from 0 in each document of a packed row");
  return starts;
}

Arrays arrays_of(const nb::dict& batch, const BatchRules& rules, const std::string& where) {
  const bool causal = rules.head == ModelHead::kCausal;
  check_keys(batch, rules, where);
  expect(batch.contains("input_ids"), where, " has no input_ids");
  expect(causal || batch.contains("labels"), where, " has no labels, one a row");
  Arrays arrays{.ids = numbers(batch["input_ids"], rules, where + ": input_ids", at::kInt)};
  const at::Tensor& ids = arrays.ids;
  expect(ids.dim() == 2 && ids.numel() > 0, where, ": input_ids have shape ", ids.sizes(),
         "; they must be [rows, tokens]");
  check_range(ids, rules.config.vocabulary, /*may_be_ignored=*/false, where + ": input_ids",
              "ids of the model");
  if (batch.contains("labels")) arrays.labels = labels_of(batch["labels"], ids, rules, where);
  if (batch.contains("attention_mask")) {
    arrays.mask = numbers(batch["attention_mask"], rules, where + ": attention_mask", at::kByte);
    check_like(*arrays.mask, ids.sizes(), where + ": attention_mask");
    const at::Tensor real = arrays.mask->sum(1).to(at::kLong);
    expect(real.min().item<int64_t>() > 0, where, ": attention_mask leaves row ",
           real.argmin().item<int64_t>(), " no token");
  }
  if (batch.contains("weights")) {
    arrays.weights = weights_of(batch["weights"], ids, rules, where + ": weights");
  }
  for (const char* name : {"position_ids", "document_ids"}) {
    if (!batch.contains(name)) continue;
    if (rules.program && rules.program->takes(name)) {
      arrays.extra[name] = numbers(batch[name], rules, concat(where, ": ", name), at::kInt);
    } else {
      arrays.document_starts = document_starts(batch, ids, rules, where);
    }
  }
  expect(!arrays.document_starts || !arrays.mask, where,
         " has an attention_mask and packed rows, which have none; label their padding -100");
  return arrays;
}

// The longest row, or document of packed ones.
int64_t longest_row(const Arrays& arrays) {
  const int64_t tokens = arrays.ids.size(1);
  if (!arrays.document_starts) return tokens;
  const auto* starts = arrays.document_starts->const_data_ptr<bool>();
  int64_t longest = 0, length = 0;
  for (int64_t i = 0; i < arrays.ids.numel(); ++i) {
    length = starts[i] ? 1 : length + 1;
    longest = std::max(longest, length);
  }
  return longest;
}

// Labels of the next tokens, which rows and documents end without.
at::Tensor shifted(const at::Tensor& values, const at::Scalar& last) {
  const int64_t tokens = values.size(1);
  const at::Tensor moved = at::full_like(values, last);
  moved.narrow(1, 0, tokens - 1).copy_(values.narrow(1, 1, tokens - 1));
  return moved;
}

MicroBatch packed_batch(const Arrays& arrays, bool pinned) {
  const auto in_memory = [&](const at::Tensor& tensor) {
    return pinned ? tensor.pin_memory() : tensor;
  };
  const at::Tensor& starts = *arrays.document_starts;
  const at::Tensor labels = arrays.labels->masked_fill(starts, static_cast<int32_t>(kIgnoredLabel));
  MicroBatch batch;
  batch.input_ids = in_memory(arrays.ids.to(at::kLong));
  batch.labels = in_memory(shifted(labels, kIgnoredLabel).to(at::kLong));
  const at::Tensor places = starts.flatten().nonzero().flatten();
  const at::Tensor ends = at::cat({places.slice(0, 1), at::full({1}, starts.numel(), at::kLong)});
  const at::Tensor lengths = (ends - places).contiguous();
  const auto* data = lengths.const_data_ptr<int64_t>();
  batch.packed = make_packed_rows({data, data + lengths.numel()}, arrays.ids.size(1), pinned);
  batch.sample_count = lengths.numel();
  batch.token_count = batch.input_ids.numel();
  batch.target_count = batch.labels.ne(kIgnoredLabel).sum().item<int64_t>();
  choose_head_positions(batch);
  return batch;
}

MicroBatch padded_batch(const Arrays& arrays, const BatchRules& rules, bool pinned) {
  const bool causal = rules.head == ModelHead::kCausal;
  const int64_t rows = arrays.ids.size(0), tokens = arrays.ids.size(1);
  std::vector<std::optional<TokenRow>> all;
  for (int64_t row = 0; row < rows; ++row) {
    TokenRow one{.input_ids = row_of(arrays.ids, row)};
    if (arrays.mask)
      one.attention_mask = {arrays.mask->const_data_ptr<uint8_t>() + row * tokens,
                            static_cast<size_t>(tokens)};
    if (causal) {
      one.labels = row_of(*arrays.labels, row);
    } else {
      one.label = arrays.labels->const_data_ptr<int32_t>()[row];
    }
    all.emplace_back(one);
  }
  return collate(causal ? Task::kCausal : Task::kClassification, all,
                 {.pad_id = rules.config.pad_token.value_or(0),
                  .pad_token = rules.config.pad_token,
                  .always_attention_mask = !causal && !rules.config.pad_token,
                  .pinned = pinned});
}

MicroBatch language_batch(const nb::dict& given, const BatchRules& rules,
                          const std::string& where) {
  Arrays arrays = arrays_of(given, rules, where);
  const int64_t longest = longest_row(arrays);
  expect(rules.config.max_positions == 0 || longest <= rules.config.max_positions, where,
         ": input_ids have ", longest, " tokens a row; model ", rules.config.name, " has ",
         rules.config.max_positions, " positions");
  if (rules.head == ModelHead::kCausal && !arrays.labels) {
    arrays.labels = arrays.mask ? arrays.ids.masked_fill(arrays.mask->eq(0),
                                                         static_cast<int32_t>(kIgnoredLabel))
                                : arrays.ids;
  }
  const bool pinned = !rules.device.is_cpu();
  MicroBatch batch =
      arrays.document_starts ? packed_batch(arrays, pinned) : padded_batch(arrays, rules, pinned);
  batch.extra = std::move(arrays.extra);
  if (arrays.weights) batch.extra[kTargetWeights] = shifted(*arrays.weights, 0.0);
  return batch.to(rules.device);
}

// Arrays of a module that returns its loss.
MicroBatch module_batch(const nb::dict& batch, const BatchRules& rules, const std::string& where) {
  const ProgramModel& program = *rules.program;
  std::map<std::string, at::Tensor> inputs;
  int64_t target_count = -1;
  for (const auto& [key, value] : batch) {
    const std::string name = nb::str(key).c_str();
    if (name == "target_count" && !program.takes(name)) {
      expect(nb::try_cast(value, target_count) && target_count >= 0, where,
             ": target_count must be an integer, 0 or more");
      continue;
    }
    expect(program.takes(name), where, ": unknown key \"", name, "\"; the module takes ",
           joined(program.inputs));
    const at::Tensor given = tensor_of(value, rules.device, where + ": " + name);
    const bool integral = at::isIntegralType(given.scalar_type(), /*includeBool=*/false);
    inputs[name] = (integral ? given.to(at::kLong) : given).clone();  // the module's dtype: later
  }
  for (const std::string& name : program.inputs) {
    expect(inputs.contains(name), where, " has no ", name, ", which the module takes");
    expect(inputs.at(name).dim() > 0, where, ": ", name, " has no dimension of rows");
  }
  const at::Tensor first = inputs.extract(program.inputs.front()).mapped();
  at::Tensor labels;
  if (inputs.contains("labels")) labels = inputs.extract("labels").mapped();
  MicroBatch made =
      make_micro_batch(first, labels.defined() ? labels.cpu() : labels, std::move(inputs));
  if (target_count >= 0) made.target_count = target_count;
  return made.to(rules.device);
}

MicroBatch batch_of(const nb::dict& batch, const BatchRules& rules, const std::string& where) {
  const bool own_loss = rules.program && rules.program->gives_loss();
  return own_loss ? module_batch(batch, rules, where) : language_batch(batch, rules, where);
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
