// SPDX-License-Identifier: MIT
#pragma once
// Training forms of published chat templates: every answer as the model generates it, and marked.
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

struct TrainingTemplate {
  const char* name;     // of the published template: "Qwen3"
  const char* differs;  // how it differs from the published template's text
  bool marks_end;       // the end of a chat has its own mark after that of the last answer
  std::string text;     // Jinja; also reads `last_answer_only`
};

// Empty for an unknown template. White space at the end of `published` is ignored.
std::optional<TrainingTemplate> training_form_of(std::string_view published);

}  // namespace tessera
