// SPDX-License-Identifier: MIT
#pragma once
// Training forms of published chat templates: they keep every answer as the model writes it, and
// mark it.
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

struct TrainingTemplate {
  const char* name;     // of the published template: "Qwen3"
  const char* differs;  // in which it is not what the published template writes
  bool marks_end;       // the end of a chat has a mark of its own behind that of the last answer
  std::string text;     // Jinja; reads `last_answer_only`, too
};

// Nothing where `published` is no template that is known. White space at its end does not count.
std::optional<TrainingTemplate> training_form_of(std::string_view published);

}  // namespace tessera
