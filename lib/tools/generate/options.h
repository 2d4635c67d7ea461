// SPDX-License-Identifier: MIT
#pragma once
// What tessera-generate can be told: names and defaults of transformers' GenerationConfig.
#include <cstdint>
#include <string>

#include "lib/settings/train_flags.h"

namespace tessera::programs {

struct GenerateOptions {
  std::string checkpoint;  // instead of layout.model
  std::string adapter;     // beside it
  std::string prompt;      // a text; "": prompts are read
  std::string prompts = "-", output = "-", format = "auto";
  bool chat = false;  // prompts are chats, standard input is one
  std::string chat_template, template_date, system;
  std::string perplexity;  // a text file; "": prompts are answered
  int64_t max_new_tokens = 20, batch_size = 8;
  std::string eos_token_id;  // numbers with commas between them; "": the model's
  bool ignore_eos = false, use_cache = true;
  bool do_sample = false;
  double temperature = 1.0, top_p = 1.0;
  int64_t top_k = 50;
  int64_t max_length = 0, stride = 0;  // of --perplexity; 0: the model's positions, half of them
  TrainOptions layout;                 // model, strategy, precision, ranks; its other members stay
};

void add_generate_flags(FlagSet& flags, GenerateOptions& options);

// Everything that can be said from the values alone. Throws Error(kInvalidArgument).
void validate_options(const GenerateOptions& options);

}  // namespace tessera::programs
