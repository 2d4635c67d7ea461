// SPDX-License-Identifier: MIT
#pragma once
// THE table of optimizers that runs choose by name. Values and help of --optim, which settings have
// no effect, names in files and flags of other frameworks, and the layout fuzzer follow from it.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/field.h"
#include "tessera/optim/adamw.h"

namespace tessera {

// The settings that optimizers read.
struct OptimizerSettings {
  double learning_rate = 0;  // --learning_rate, for those that have a rate of their own beside it
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  MomentsDtype moments = MomentsDtype::kFloat32;
  std::vector<std::string> arguments;  // of --optim_args: "name=value"
};

struct OptimizerRow {
  // Optimizers of DeepSpeed's files.
  struct DeepSpeed {
    std::vector<const char*> types;       // values of "type"; their case does not matter
    std::vector<const char*> parameters;  // keys of "params" beside lr and weight_decay
    // A flag's value where the file lacks the key and DeepSpeed's default is not ours.
    struct Default {
      const char *parameter, *flag, *value;
    };
    std::vector<Default> defaults = {};
  };
  struct ForeignName {
    const char *flag, *value;
  };

  const char* name;                          // of --optim
  std::vector<const char*> aliases = {};     // other values of --optim, and names in fuzzer lines
  const char* help = "";                     // after the name in the help of --optim
  const char* arguments = "";                // after the name in the help of --optim_args
  bool betas = false, epsilon = false;       // whether it reads --adam_beta1 and 2, --adam_epsilon
  std::optional<MomentsDtype> moments = {};  // of --moments_dtype by default; none: it has none
  bool fixed_moments = false;                // whether it refuses others
  DeepSpeed deepspeed = {};
  std::vector<ForeignName> elsewhere = {};  // flags and keys of other frameworks
  // Throws Error(kInvalidArgument) for arguments that it does not have, and for their values.
  OptimizerFactory (*factory)(const OptimizerRow&, const OptimizerSettings&) = nullptr;

  OptimizerFactory make(const OptimizerSettings& settings) const {
    return factory(*this, settings);
  }
  // Sets the variables that settings.arguments name; other names are refused.
  void read_arguments(const OptimizerSettings& settings,
                      const std::vector<std::pair<std::string, FieldRef>>& known) const;
};

// In the order of --help; the first is the default.
const std::vector<OptimizerRow>& optimizer_table();
// By name or alias; null: there is none.
const OptimizerRow* find_optimizer(const std::string& name);
// Names of those for which this holds.
std::vector<std::string> optimizer_names(bool (*holds)(const OptimizerRow&) = nullptr);

// A variable that has one of the rows.
FieldRef field_of(const OptimizerRow*& variable);

}  // namespace tessera
