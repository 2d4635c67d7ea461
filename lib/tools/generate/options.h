// SPDX-License-Identifier: MIT
#pragma once
// Options of tessera-generate, with names and defaults of transformers' GenerationConfig.
#include <cstdint>
#include <string>

#include "lib/settings/train_flags.h"

namespace tessera::programs {

struct GenerateOptions {
  std::string checkpoint;  // used instead of layout.model
  std::string adapter;     // for the checkpoint or the model
  std::string prompt;      // a text; "": prompts are read from a file or standard input
  std::string prompts = "-", output = "-", format = "auto";
  bool chat = false;  // prompts are chats; standard input is a single chat
  std::string chat_template, template_date, system;
  std::string perplexity;  // a text file; "": generates instead
  int64_t max_new_tokens = 20, batch_size = 8;
  std::string eos_token_id;  // comma-separated numbers; "": the model's
  bool ignore_eos = false, use_cache = true;
  bool do_sample = false;
  double temperature = 1.0, top_p = 1.0;
  int64_t top_k = 50;
  // For --perplexity; 0: the model's positions, and half of them.
  int64_t max_length = 0, stride = 0;
  TrainOptions layout;  // model, strategy, precision, ranks; other members are unused
};

void add_generate_flags(FlagSet& flags, GenerateOptions& options);

// Checks of the values alone. Throws Error(kInvalidArgument).
void validate_options(const GenerateOptions& options);

}  // namespace tessera::programs
