// Renders chats for chat_templates.py: a line of JSON in, a line of JSON out.
#include <iostream>

#include "lib/core/file.h"
#include "tessera/data/chat_template.h"

using namespace tessera;

namespace {

void write_row(const Json& row, JsonWriter& out) {
  const auto chat_template = ChatTemplate::load(row.at("directory").as_string());
  const Json messages = row.at("messages");
  const std::optional<Json> tools = row.find("tools");
  out.field("text", chat_template.render(messages, tools, row.at("prompt").as_bool()));
  out.field("marks", chat_template.marks_generation());
  for (const auto& [name, train_on] :
       {std::pair("assistant", TrainOn::kAssistant), std::pair("last", TrainOn::kLast)}) {
    out.key(name);
    try {
      const RenderedChat chat = chat_template.render_for_training(messages, tools, train_on);
      out.begin_array();
      for (const TextSpan& span : chat.trained) {
        out.begin_array().value(span.begin).value(span.end).end_array();
      }
      out.end_array();
    } catch (const Error& error) {
      out.value(error.what());
    }
  }
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    JsonWriter out;
    try {
      out.begin_object();
      write_row(Json::parse(line, {}, "row"), out);
      out.end_object();
    } catch (const Error& error) {
      out = JsonWriter();
      out.begin_object().field("error", error.what()).end_object();
    }
    std::cout << out.text() << std::endl;
  }
}
