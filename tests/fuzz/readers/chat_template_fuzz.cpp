// SPDX-License-Identifier: MIT
// The first character selects the input: 't' a template and, after NUL, its variables; 'd' a
// tokenizer_config.json with a template; 'r' a row of instruction data; 'f' a file of rows.
#include "lib/core/file.h"
#include "lib/data/jinja/template.h"
#include "lib/data/lines.h"
#include "tessera/data/chat_record.h"
#include "tessera/data/chat_template.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

namespace {

void check_rendered(const jinja::Rendered& rendered) {
  fuzz::expect(utf8_valid_prefix(rendered.text) == rendered.text.size(), "text is no UTF-8");
  for (const jinja::MarkedText& mark : rendered.marks) {
    fuzz::expect(mark.begin <= mark.end, "a mark ends before it begins");
    fuzz::expect(rendered.unplaced_marks || mark.end <= rendered.text.size(),
                 "a mark out of the text");
  }
}

void read_template(std::string_view input) {
  const auto parts = fuzz::parts_of(input, 2);
  std::vector<std::pair<std::string, jinja::Value>> variables;
  if (!parts[1].empty()) {
    const auto read = [&] {
      for (const auto& [name, value] : Json::parse(parts[1], {}, "variables").members()) {
        variables.emplace_back(name, jinja::Value::of(value));
      }
    };
    if (!fuzz::accepts({ErrorCode::kDataLoss, ErrorCode::kInvalidArgument}, read)) return;
  }
  fuzz::accepts({ErrorCode::kInvalidArgument}, [&] {
    const auto parsed = jinja::Template::parse(
        parts[0], "t", {.template_bytes = 1 << 14, .output_bytes = 1 << 20, .steps = 200'000});
    const jinja::Rendered rendered = parsed.render(variables, {});
    check_rendered(rendered);
    fuzz::expect(parsed.render(variables, {}).text == rendered.text,
                 "another text the second time");
  });
}

void read_config(std::string_view input) {
  fuzz::folder().write("tokenizer_config.json", input);
  fuzz::accepts({ErrorCode::kInvalidArgument, ErrorCode::kDataLoss},
                [] { ChatTemplate::load(fuzz::folder().path(".")); });
}

void read_row(std::string_view input) {
  static const ChatTemplate chat_template = [] {
    fuzz::folder().write("tokenizer_config.json", R"({"eos_token":"</s>"})");
    return ChatTemplate::choose("chatml", fuzz::folder().path("."));
  }();
  std::optional<ChatRecord> record;
  fuzz::accepts({ErrorCode::kDataLoss},
                [&] { record = read_chat_record(Json::parse(input, {}, "row")); });
  if (!record) return;
  fuzz::expect(record->messages.size() > 0, "a chat without messages");
  fuzz::accepts({ErrorCode::kInvalidArgument, ErrorCode::kDataLoss}, [&] {
    size_t at = 0;
    const RenderedChat chat =
        chat_template.render_for_training(record->messages, record->tools, TrainOn::kAssistant);
    for (const TextSpan& span : chat.trained) {
      fuzz::expect(span.begin >= at && span.begin < span.end, "parts that are trained overlap");
      at = span.end;
    }
    fuzz::expect(at <= chat.text.size(), "a part behind the end of the text is trained");
  });
}

void read_file_of_rows(std::string_view input) {
  std::vector<std::string> items;
  const bool taken = fuzz::accepts({ErrorCode::kDataLoss}, [&] {
    for_each_json_text_of(input, "file", [&](std::string_view text, const std::string&) {
      fuzz::expect(text.find_first_not_of(" \t\r\n") != text.npos, "a row of blanks");
      items.emplace_back(text);
    });
  });
  std::optional<Json> whole;
  fuzz::accepts({ErrorCode::kDataLoss}, [&] { whole = Json::parse(input, {}, "whole"); });
  if (!whole || !whole->is_array()) return;
  fuzz::expect(taken && items.size() == whole->size(), "other items than the array has");
  for (size_t i = 0; i < items.size(); ++i) {
    const Json item = Json::parse(items[i], {}, "item");
    fuzz::expect(item.dump() == whole->at(i).dump(), "another item");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input = fuzz::text_of(data, size);
  char kind = '\0';
  if (!fuzz::take_kind(input, kind)) return 0;
  if (kind == 'd') {
    read_config(input);
  } else if (kind == 'r') {
    read_row(input);
  } else if (kind == 'f') {
    read_file_of_rows(input);
  } else {
    read_template(input);
  }
  return 0;
}
