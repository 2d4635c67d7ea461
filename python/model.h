// SPDX-License-Identifier: MIT
#pragma once
// A model of Python: a built-in language model, or an exported program.
#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "python/program_model.h"
#include "tessera/core/error.h"
#include "tessera/models/language_model.h"

namespace tessera::python {

struct Model {
  LanguageModel language_model;  // of a program: names, tokens and sizes alone
  ModelHead head = ModelHead::kCausal;
  int64_t num_labels = 0;
  std::string weights = {};  // directory of the weights; "": random ones
  std::shared_ptr<const ProgramModel> program = nullptr;  // null: built in

  ModelSpec spec() const { return program ? program->spec : language_model.make(head, num_labels); }
  // Equal on ranks that have the same model.
  std::string identity() const {
    return concat(program ? program->identity : language_model.to_json(head), " ", num_labels);
  }
  // config.json for transformers; "" of a program.
  std::string config_json() const { return program ? "" : language_model.to_json(head); }
};

void bind_model(nanobind::module_& module);

}  // namespace tessera::python
