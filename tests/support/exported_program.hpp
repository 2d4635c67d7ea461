// SPDX-License-Identifier: MIT
#pragma once
// Exported programs, and what PyTorch computed with them (reference.json beside them).
#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "tessera/checkpoint/huggingface.h"
#include "tessera/core/json.h"
#include "tessera/model/whole_model.h"
#include "tessera/program/from_program.h"

namespace tessera::test {

// Nested lists of numbers.
inline void append_numbers(const Json& json, std::vector<double>& numbers,
                           std::vector<int64_t>& shape, size_t depth = 0) {
  if (!json.is_array()) {
    numbers.push_back(json.as_double());
    return;
  }
  const auto size = static_cast<int64_t>(json.size());
  if (shape.size() == depth) shape.push_back(size);
  for (const Json& item : json.items()) append_numbers(item, numbers, shape, depth + 1);
}

inline at::Tensor tensor_of(const Json& json, at::ScalarType dtype) {
  std::vector<double> numbers;
  std::vector<int64_t> shape;
  append_numbers(json, numbers, shape);
  return at::tensor(numbers, at::kDouble).view(shape).to(dtype);
}

// Labels are those of the rows' own tokens there; here they are shifted.
inline MicroBatch causal_batch(const Json& batch) {
  const at::Tensor ids = tensor_of(batch.at("input_ids"), at::kLong);
  const at::Tensor labels = tensor_of(batch.at("labels"), at::kLong);
  const at::Tensor shifted = at::full_like(labels, kIgnoredLabel);
  shifted.narrow(1, 0, labels.size(1) - 1).copy_(labels.narrow(1, 1, labels.size(1) - 1));
  return make_micro_batch(ids, shifted);
}

// A class for each row.
inline MicroBatch class_batch(const Json& batch) {
  return make_micro_batch(tensor_of(batch.at("input_ids"), at::kLong),
                          tensor_of(batch.at("labels"), at::kLong));
}

// The first input, labels and all others by name; the targets are integral labels, else the rows.
inline MicroBatch module_batch(const Json& manifest, const Json& batch) {
  at::Tensor first, labels;
  std::map<std::string, at::Tensor> extra;
  for (const Json& input : manifest.at("inputs").items()) {
    const std::string name = input.at("name").as_string();
    const bool is_integral = input.at("dtype").as_string().starts_with("int");
    const at::Tensor value = tensor_of(batch.at(name), is_integral ? at::kLong : at::kFloat);
    if (!first.defined()) {
      first = value;
    } else if (name == "labels") {
      labels = value;
    } else {
      extra[name] = value;
    }
  }
  if (!labels.defined()) labels = at::zeros({first.size(0)});
  return make_micro_batch(first, labels, extra);
}

// As program_reference.py computes them.
inline std::pair<double, double> norm_and_probe(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).flatten();
  const at::Tensor factors = at::arange(flat.numel(), at::kDouble).cos();
  return {flat.norm().item<double>(), flat.dot(factors).item<double>()};
}

// The model with the fixture's weights, on the CPU.
struct LoadedModel {
  explicit LoadedModel(const std::string& directory, const ProgramOptions& options = {})
      : weights(directory),
        spec(from_program(directory, options)),
        model(spec, {.source = &weights}) {}

  HuggingFaceDirectory weights;
  ModelSpec spec;
  WholeModel model;
};

// Loss and gradients of a step as a strategy takes it, by the names of the weights.
struct ProgramStep {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};
struct StepOptions {
  bool gradient_in_forward = true;
  uint64_t seed = 0;   // of the micro-batch
  bool fused = false;  // BlockContext::fused_layers
};
inline ProgramStep step(LoadedModel& loaded, const MicroBatch& batch,
                        const StepOptions& options = {}) {
  at::Tensor scale = at::full({}, 1.0 / static_cast<double>(batch.target_count));
  BlockContext context{.seed = options.seed, .training = true, .fused_layers = options.fused};
  const bool own_divisor = loaded.model.blocks().back()->gives_divisor();
  if (options.gradient_in_forward && !own_divisor) context.loss_gradient = scale;
  for (const Parameter& parameter : loaded.model.parameters())
    parameter.tensor.mutable_grad().zero_();
  const at::Tensor sums = loaded.model.forward(batch, context);
  if (own_divisor) scale = sums[1].detach().reciprocal();
  sums[0].backward(scale);
  ProgramStep result{.loss = (sums[0] * scale).item<double>()};
  for (const Parameter& parameter : loaded.model.parameters()) {
    result.gradients[parameter.name] = parameter.tensor.grad().clone();
  }
  return result;
}

// Names of the program's parameters in the weights.
inline std::map<std::string, std::string> names_in_weights(const std::string& directory) {
  std::map<std::string, std::string> names;
  const Json manifest = Json::parse_file(directory + "/program.json");
  for (const Json& parameter : manifest.at("parameters").items()) {
    const std::string name = parameter.at("name").as_string();
    const Json stored = parameter.at("stored");
    names[name] = stored.is_string() ? stored.as_string() : name;
  }
  return names;
}

}  // namespace tessera::test
