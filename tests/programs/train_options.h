// SPDX-License-Identifier: MIT
#pragma once
// Options of tessera-finetune-causal from a command line.
#include <sstream>
#include <string>
#include <vector>

#include "lib/interop/foreign_flags.h"
#include "lib/settings/train_flags.h"

namespace tessera::programs {

inline std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream in(line);
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

inline TrainOptions options_of(const std::string& line) {
  FlagSet flags("options_of", "");
  TrainOptions options;
  add_train_flags(flags, options, Program::kText, find_foreign);
  flags.parse(words_of(line));
  return options;
}

}  // namespace tessera::programs
