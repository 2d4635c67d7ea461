// SPDX-License-Identifier: MIT
// Renders chats for chat_templates.py: one line of JSON in, one line of JSON out.
#include <iostream>
#include <optional>

#include "lib/core/file.h"
#include "tessera/data/chat_examples.h"
#include "tessera/data/chat_template.h"
#include "tessera/data/tokenizer.h"

using namespace tessera;

namespace {

// Template and tokenizer of the last row's directory.
struct Loaded {
  std::string directory;
  ChatTemplate chat_template;
  Tokenizer tokenizer;
};

// 1 for every trained token.
void write_mask(const RenderedChat& chat, const Tokenizer& tokenizer, JsonWriter& out) {
  out.key("mask").begin_array();
  for (const int32_t label : chat_example(chat, tokenizer).labels) {
    out.value(label == kIgnoredLabel ? 0 : 1);
  }
  out.end_array();
}

void write_row(const Json& row, std::optional<Loaded>& loaded, JsonWriter& out) {
  const std::string directory = row.at("directory").as_string();
  if (!loaded || loaded->directory != directory) {
    loaded = Loaded{directory, ChatTemplate::load(directory), Tokenizer::load(directory)};
  }
  const ChatTemplate& chat_template = loaded->chat_template;
  const Json messages = row.at("messages");
  const std::optional<Json> tools = row.find("tools");
  const std::string text = chat_template.render(messages, tools, row.at("prompt").as_bool());
  out.field("text", text).field("ids", loaded->tokenizer.encode(text, false));
  out.field("marks", chat_template.marks_generation());
  out.field("form", chat_template.training_form().has_value());
  for (const auto& [name, train_on] :
       {std::pair("assistant", TrainOn::kAssistant), std::pair("last", TrainOn::kLast)}) {
    out.key(name);
    try {
      const RenderedChat chat = chat_template.render_for_training(messages, tools, train_on);
      check(chat.rewritten.empty(), ErrorCode::kInvalidArgument, chat.rewritten);
      out.begin_array();
      for (const TextSpan& span : chat.trained) {
        out.begin_array().value(span.begin).value(span.end).end_array();
      }
      out.end_array();
      if (train_on == TrainOn::kAssistant) write_mask(chat, loaded->tokenizer, out);
    } catch (const Error& error) {
      out.value(error.what());
    }
  }
}

}  // namespace

int main() {
  std::optional<Loaded> loaded;
  std::string line;
  while (std::getline(std::cin, line)) {
    JsonWriter out;
    try {
      out.begin_object();
      write_row(Json::parse(line, {}, "row"), loaded, out);
      out.end_object();
    } catch (const Error& error) {
      out = JsonWriter();
      out.begin_object().field("error", error.what()).end_object();
    }
    std::cout << out.text() << std::endl;
  }
}
