// SPDX-License-Identifier: MIT
#pragma once
// A built-in language model, by its Python name.
#include <nanobind/nanobind.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/models/language_model.h"

namespace tessera::python {

struct Model {
  LanguageModel language_model;
  ModelHead head = ModelHead::kCausal;
  int64_t num_labels = 0;
  std::string weights = {};  // directory of the weights; "": random ones

  ModelSpec spec() const { return language_model.make(head, num_labels); }
};

void bind_model(nanobind::module_& module);

}  // namespace tessera::python
