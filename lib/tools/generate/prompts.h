// SPDX-License-Identifier: MIT
#pragma once
// Prompts from files and standard input.
#include <cstdint>
#include <string>
#include <vector>

#include "lib/tools/generate/options.h"
#include "tessera/comm/control_channel.h"
#include "tessera/data/tokenizer.h"

namespace tessera::programs {

// Content of a file or standard input, read on the first rank, returned on every rank. Collective.
// Errors of the first rank are thrown on all. hint: appended to the message for a missing file.
std::string read_on_first_rank(const std::string& path, ControlChannel& control,
                               const std::string& hint = "");

struct Prompts {
  std::vector<std::string> texts;  // "" for prompts given as ids
  std::vector<std::vector<int64_t>> ids;
};

struct PromptLimits {
  int64_t vocabulary = 0;
  int64_t max_positions = 0;  // 0: no limit
};

// Adds the prompt of a text. Throws as parse_prompts().
void add_text(const std::string& text, const std::string& where, const Tokenizer* tokenizer,
              const PromptLimits& limits, Prompts& prompts);

// tokenizer: null rejects texts. Throws Error(kDataLoss) with `origin` and line for a prompt that
// is empty, too long or malformed, and for an input without prompts.
Prompts parse_prompts(const std::string& content, const std::string& origin,
                      const std::string& format, const Tokenizer* tokenizer,
                      const PromptLimits& limits);

}  // namespace tessera::programs
