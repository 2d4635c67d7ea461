// SPDX-License-Identifier: MIT
#pragma once
// program.json: what a directory of exported programs holds.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/program/stored_form.h"
#include "lib/program/user_inputs.h"
#include "tessera/core/json.h"

namespace tessera::program {

enum class LossKind { kCausal, kClassification, kMean, kSumCount };

// How a parameter is drawn where there are no weights.
struct Init {
  enum class Kind { kNormal, kUniform, kConstant, kTensor };
  Kind kind = Kind::kConstant;
  double first = 0, second = 0;    // mean and deviation; lower and upper bound; value
  std::vector<int64_t> zero_rows;  // of a table, those of padding
  std::string constant;            // of kTensor, among the constants
};

struct ParameterEntry {
  std::string name;
  std::vector<int64_t> shape;
  StoredForm stored;    // in the weights
  std::string same_as;  // the parameter that it is tied to; empty: none
  bool trained = true;
  std::optional<Init> init;
};

// The parameter's name as the Hub and PEFT have it. A prefix that files may leave out stays.
std::string hub_name(const ParameterEntry& entry);

struct BufferEntry {
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  bool persistent = false;
  std::string stored;  // empty: not among the weights
  bool changes = false;
};

struct ProgramEntry {
  at::ScalarType dtype = at::kFloat;
  bool training = true;
  std::string file;
};

struct Manifest {
  std::string file, name, model_type;
  LossKind loss = LossKind::kMean;
  std::vector<InputEntry> inputs;  // in the order of the graphs' user inputs
  std::vector<std::string> outputs;
  // The second result is a loss of its own, such as that of experts' balance: how much it counts.
  std::optional<double> auxiliary_weight;
  std::vector<ProgramEntry> programs;
  std::string constants;  // file name; empty: none
  std::vector<std::string> layers;
  std::vector<ParameterEntry> parameters;
  std::vector<BufferEntry> buffers;
  SlicedExtents sliced;

  // Null: there is none.
  const ParameterEntry* parameter(const std::string& name) const;
  const BufferEntry* buffer(const std::string& name) const;
};

// Throws Error(kDataLoss) with file and place
// for what is malformed, for another version, and for names that stand twice.
Manifest read_manifest(const Json& json);

}  // namespace tessera::program
