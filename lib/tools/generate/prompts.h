// SPDX-License-Identifier: MIT
#pragma once
// Prompts as people write them.
#include <cstdint>
#include <string>
#include <vector>

#include "lib/tools/generate/options.h"
#include "tessera/comm/control_channel.h"
#include "tessera/data/tokenizer.h"

namespace tessera::programs {

// What a file or standard input holds, read by the first rank, on every rank. Collective. What
// fails on the first rank is the Error of all. hint: behind the message where nothing is there.
std::string read_on_first_rank(const std::string& path, ControlChannel& control,
                               const std::string& hint = "");

struct Prompts {
  std::vector<std::string> texts;  // "" where only ids were given
  std::vector<std::vector<int64_t>> ids;
};

struct PromptLimits {
  int64_t vocabulary = 0;
  int64_t max_positions = 0;  // 0: any number
};

// Adds the prompt of a text. Errors are those of parse_prompts().
void add_text(const std::string& text, const std::string& where, const Tokenizer* tokenizer,
              const PromptLimits& limits, Prompts& prompts);

// tokenizer: null where there is none; texts are then refused. Throws Error(kDataLoss) with
// `origin` and line for a prompt that is empty, too long, or no prompt at all, and when there is
// none.
Prompts parse_prompts(const std::string& content, const std::string& origin,
                      const std::string& format, const Tokenizer* tokenizer,
                      const PromptLimits& limits);

}  // namespace tessera::programs
