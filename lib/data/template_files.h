// SPDX-License-Identifier: MIT
#pragma once
// Chat templates and special tokens in a tokenizer's directory.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/data/jinja/template.h"
#include "lib/data/jinja/value.h"
#include "lib/data/training_forms.h"

namespace tessera {

using Variables = std::vector<std::pair<std::string, jinja::Value>>;

constexpr size_t kMaxTemplateBytes = size_t{64} << 20;

// A template, and its training form if it is a published one that has one.
struct NamedTemplate {
  NamedTemplate(std::string name_, std::string text_, const std::string& origin)
      : name(std::move(name_)),
        text(std::move(text_)),
        parsed(jinja::Template::parse(text, origin)),
        form(training_form_of(text)) {
    if (form) training = jinja::Template::parse(form->text, origin + " in its training form");
  }

  std::string name, text;
  jinja::Template parsed;
  std::optional<TrainingTemplate> form;
  std::optional<jinja::Template> training;  // parsed `form`
};
using NamedTemplates = std::vector<NamedTemplate>;

// Special tokens by their names in templates.
Variables special_tokens(const std::string& directory);

// Templates of chat_template.jinja and additional_chat_templates, else of tokenizer_config.json;
// empty if there are none. Throws Error(kInvalidData) for an invalid template.
NamedTemplates templates_of(const std::string& directory);

}  // namespace tessera
