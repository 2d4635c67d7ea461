// SPDX-License-Identifier: MIT
#pragma once
// An exported program as a model of Python: what its directory says of its inputs and names.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera::python {

struct ProgramModel {
  std::string directory;
  std::string loss;                 // "causal", "classification", "mean", "sum_count"
  std::vector<std::string> inputs;  // in the order of the module's arguments
  // Names of tied parameters in the module, with that of the tensor they share.
  std::map<std::string, std::string> same_as;
  std::vector<std::string> buffers;  // names in the module
  ModelSpec spec;
  // Equal on ranks with equal programs; of a module in memory its values are part of it.
  std::string identity;

  // Whether the program returns its loss; else it returns scores.
  bool gives_loss() const { return loss == "mean" || loss == "sum_count"; }
  bool takes(const std::string& input) const;
};

// with_values: the identity holds a hash of model.safetensors. running_statistics_of_rank: see
// ProgramOptions. Throws as from_program().
std::shared_ptr<const ProgramModel> read_program(const std::string& directory, bool with_values,
                                                 std::optional<int> running_statistics_of_rank);

}  // namespace tessera::python
