#pragma once
// The options of tessera-finetune-causal, from a line as a shell takes it.
#include <sstream>
#include <string>
#include <vector>

#include "lib/interop/foreign_flags.h"
#include "lib/settings/train_flags.h"

namespace tessera::programs {

inline TrainOptions options_of(const std::string& line) {
  std::vector<std::string> arguments;
  std::istringstream in(line);
  for (std::string word; in >> word;) arguments.push_back(word);
  FlagSet flags("options_of", "");
  TrainOptions options;
  add_train_flags(flags, options, Program::kText, find_foreign);
  flags.parse(arguments);
  return options;
}

}  // namespace tessera::programs
