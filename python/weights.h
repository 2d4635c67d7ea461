// SPDX-License-Identifier: MIT
#pragma once
// Weights that a Python program has in memory.
#include <nanobind/nanobind.h>

#include <map>
#include <string>

#include "tessera/model/model_spec.h"

namespace tessera::python {

// Named arrays, by the names of a Hugging Face checkpoint with or without the base model's prefix.
class GivenWeights final : public TensorSource {
 public:
  // arrays: name -> DLPack. Throws Error(kInvalidArgument) with names for what the model does not
  // have, what it lacks, another shape, and another dtype than floating ones.
  GivenWeights(const nanobind::dict& arrays, const ModelSpec& model, at::Device device);

  bool has(const std::string& name) const override { return !locate(name).empty(); }
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const override;
  // Of names, dtypes, shapes and numbers: equal where other ranks are given the same.
  std::string fingerprint() const;

 private:
  std::string locate(const std::string& name) const;  // as given; "" when absent

  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace tessera::python
