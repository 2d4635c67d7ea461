// SPDX-License-Identifier: MIT
#pragma once
// Weights in a Python program's memory.
#include <nanobind/nanobind.h>

#include <map>
#include <set>
#include <string>

#include "tessera/model/model_spec.h"

namespace tessera::python {

// Named arrays, with a Hugging Face checkpoint's names, with or without the base model's prefix.
class GivenWeights final : public TensorSource {
 public:
  // arrays: name -> DLPack. others: names that are no parameters, but may be given. Throws
  // Error(kInvalidArgument) with the names of unknown and missing arrays, and for other shapes or
  // dtypes that are not floating.
  GivenWeights(const nanobind::dict& arrays, const ModelSpec& model, at::Device device,
               const std::set<std::string>& others = {});

  bool has(const std::string& name) const override { return !locate(name).empty(); }
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const override;
  // Hash of names, dtypes, shapes and values: equal on ranks with equal weights.
  std::string fingerprint() const;
  const std::map<std::string, at::Tensor>& tensors() const { return tensors_; }

 private:
  std::string locate(const std::string& name) const;  // the given name; "" when absent

  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace tessera::python
