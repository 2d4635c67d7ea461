// SPDX-License-Identifier: MIT
#pragma once
// Exported programs of tests/data/programs, and what PyTorch computed with them.
#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "tessera/checkpoint/huggingface.h"
#include "tessera/core/json.h"
#include "tessera/model/whole_model.h"
#include "tessera/program/from_program.h"

namespace tessera::test {

inline std::string program_directory(const std::string& name) {
  return std::string(TESSERA_PROGRAMS) + "/" + name;
}

inline Json reference_of(const std::string& name) {
  return Json::parse_file(program_directory(name) + "/reference.json");
}

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

// The model with the fixture's weights, on the CPU.
struct LoadedModel {
  explicit LoadedModel(const std::string& name, const ProgramOptions& options = {})
      : weights(program_directory(name)),
        spec(from_program(program_directory(name), options)),
        model(spec, {.source = &weights}) {}

  HuggingFaceDirectory weights;
  ModelSpec spec;
  WholeModel model;
};

// Loss and gradients of a step as a strategy takes it, by the names of the weights.
struct StepResult {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};
inline StepResult step(LoadedModel& loaded, MicroBatch batch, bool gradient_in_forward) {
  const at::Tensor scale = at::full({}, 1.0 / static_cast<double>(batch.target_count));
  batch.training = true;
  if (gradient_in_forward) batch.loss_gradient = scale;
  for (const Parameter& parameter : loaded.model.parameters()) parameter.tensor.mutable_grad().zero_();
  const at::Tensor sums = loaded.model.forward(batch);
  sums[0].backward(scale);
  StepResult result{.loss = (sums[0] * scale).item<double>()};
  for (const Parameter& parameter : loaded.model.parameters()) {
    result.gradients[parameter.name] = parameter.tensor.grad().clone();
  }
  return result;
}

}  // namespace tessera::test
