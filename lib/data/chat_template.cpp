// SPDX-License-Identifier: MIT
#include "tessera/data/chat_template.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "lib/core/file.h"
#include "lib/core/joined.h"
#include "lib/data/builtin_chat_templates.h"
#include "lib/data/jinja/date.h"
#include "lib/data/jinja/template.h"
#include "lib/data/jinja/text.h"

namespace tessera {

using jinja::Value;

namespace {

using Variables = std::vector<std::pair<std::string, Value>>;
struct NamedTemplate {
  std::string name, text;
  jinja::Template parsed;
};
using NamedTemplates = std::vector<NamedTemplate>;
constexpr size_t kMaxFileBytes = size_t{64} << 20;

std::optional<Json> file_of(const std::string& directory, const char* name) {
  const std::string path = directory + "/" + name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return Json::parse_file(path);
}

// Special tokens by name, as templates call them.
Variables special_tokens(const std::string& directory) {
  Variables tokens;
  const std::optional<Json> files[] = {file_of(directory, "tokenizer_config.json"),
                                       file_of(directory, "special_tokens_map.json")};
  for (const char* kind : {"bos", "eos", "unk", "sep", "pad", "cls", "mask"}) {
    const std::string name = std::string(kind) + "_token";
    for (const auto& file : files) {
      const auto token = file ? file->find(name) : std::nullopt;
      if (!token) continue;
      tokens.emplace_back(
          name, token->is_object() ? token->at("content").as_string() : token->as_string());
      break;
    }
  }
  return tokens;
}

NamedTemplates templates_of(const std::string& directory) {
  NamedTemplates templates;
  const auto add = [&](const std::string& name, const std::string& text,
                       const std::string& origin) {
    templates.push_back({name, text, jinja::Template::parse(text, origin)});
  };
  const std::string file = directory + "/chat_template.jinja";
  if (std::filesystem::exists(file)) add("default", read_file(file, kMaxFileBytes), file);
  const std::filesystem::path more = directory + "/additional_chat_templates";
  if (std::filesystem::is_directory(more)) {
    for (const auto& entry : std::filesystem::directory_iterator(more)) {
      if (entry.path().extension() != ".jinja") continue;
      const std::string path = entry.path().string();
      add(entry.path().stem().string(), read_file(path, kMaxFileBytes), path);
    }
  }
  const auto config = file_of(directory, "tokenizer_config.json");
  const auto written = config ? config->find("chat_template") : std::nullopt;
  if (!templates.empty() || !written) return templates;
  const std::string origin = config->origin() + ": chat_template";
  if (!written->is_array()) {
    add("default", written->as_string(), origin);
    return templates;
  }
  for (const Json& one : written->items()) {
    const std::string name = one.at("name").as_string();
    add(name, one.at("template").as_string(), origin + " \"" + name + "\"");
  }
  return templates;
}

// As transformers 5 hands messages to templates: without what is null, and what an assistant
// thought under three names.
Value message_of(const Json& message) {
  if (!message.is_object()) message.fail("a message is an object with \"role\" and \"content\"");
  jinja::Dict given;
  std::optional<Value> thought;
  for (const auto& [key, value] : message.members()) {
    if (!value.is_null()) given.set(key, Value::of(value));
  }
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* found = given.find(std::string_view(name));
    if (found && !thought) thought = *found;
  }
  if (!thought) return Value::dict(std::move(given));
  jinja::Dict named;
  named.set("thinking", *thought);
  for (const auto& [key, value] : given.members) named.set(key, value);
  named.set("reasoning_content", *thought);
  return Value::dict(std::move(named));
}

bool is_assistant(const Json& message) { return message.get("role", "") == "assistant"; }

std::chrono::sys_days today() {
  return std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
}

}  // namespace

struct ChatTemplate::Parts {
  NamedTemplates templates;
  Variables tokens;
  std::chrono::sys_days day = today();  // of all rows

  const jinja::Template& chosen(bool with_tools) const {
    const auto named = [this](const char* name) {
      return std::ranges::find(templates, name, &NamedTemplate::name);
    };
    if (with_tools && named("tool_use") != templates.end()) return named("tool_use")->parsed;
    if (named("default") != templates.end()) return named("default")->parsed;
    std::vector<std::string> names;
    for (const auto& one : templates) names.push_back(one.name);
    fail(ErrorCode::kInvalidArgument, templates[0].parsed.origin(),
         ": none of the chat templates (", joined(names), ") is called default");
  }
};

// One chat with one template, of which beginnings are rendered.
class ChatTemplate::Chat {
 public:
  Chat(const Parts& parts, const Json& messages, const std::optional<Json>& tools)
      : parts_(parts), template_(parts.chosen(tools.has_value())), json_(messages.items()) {
    for (const Json& message : json_) messages_.push_back(message_of(message));
    if (tools) tools_ = Value::of(*tools);
  }

  const std::vector<Json>& messages() const { return json_; }
  const jinja::Template& chosen() const { return template_; }

  jinja::Rendered render(size_t count, bool add_generation_prompt) const {
    Variables variables = parts_.tokens;
    variables.emplace_back(
        "messages",
        Value::list({messages_.begin(), messages_.begin() + static_cast<ptrdiff_t>(count)}));
    variables.emplace_back("tools", tools_);
    variables.emplace_back("documents", Value());
    variables.emplace_back("add_generation_prompt", add_generation_prompt);
    return template_.render(std::move(variables), parts_.day);
  }

  // What the answer `turn` adds to the text of the chat before it.
  TextSpan added(size_t turn, const std::string& whole) const {
    const std::string before = beginning(turn, true), after = beginning(turn + 1, false);
    const std::string_view answer = without_space(turn, after);
    const std::string number = std::to_string(turn + 1);
    const std::string prompted =
        "the chat before message " + number + ", with its generation prompt,";
    check_begins(before, whole, prompted + " does not begin the whole chat");
    check_begins(answer, whole,
                 "message " + number + " is written otherwise when it is the last one");
    check_begins(before, answer, prompted + " does not begin the chat with it");
    return {before.size(), answer.size()};
  }

 private:
  std::string beginning(size_t count, bool add_generation_prompt) const {
    try {
      return render(count, add_generation_prompt).text;
    } catch (const Error& error) {
      throw jinja::Defect(concat(error.what(), "; this happens when the chat ends ",
                                 add_generation_prompt ? "before" : "after", " message ",
                                 add_generation_prompt ? count + 1 : count,
                                 ", so what the assistant wrote cannot be told; mark it in the "
                                 "template by {% generation %}"));
    }
  }

  // Behind an end token white space is not trained; behind a bare answer it is its end.
  std::string_view without_space(size_t turn, std::string_view after) const {
    const std::string_view kept = jinja::stripped(after, false, true);
    const auto content = json_[turn].find("content");
    const std::string text = content && content->is_string() ? content->as_string() : "";
    const std::string_view answer = jinja::stripped(text, false, true);
    return !answer.empty() && kept.ends_with(answer) ? after : kept;
  }

  void check_begins(std::string_view part, std::string_view whole,
                    const std::string& otherwise) const {
    if (whole.starts_with(part)) return;
    auto byte = static_cast<size_t>(std::ranges::mismatch(part, whole).in1 - part.begin());
    while (byte > 0 && byte < part.size() && (part[byte] & 0xC0) == 0x80) --byte;
    const auto shown = [&](std::string_view text) {
      const std::string_view rest = text.substr(std::min(byte, text.size()));
      return jinja::string_repr(rest.substr(0, jinja::byte_of(rest, 30)));
    };
    throw jinja::Defect(concat(template_.origin(), ": ", otherwise, ": ", shown(part), " at byte ",
                               byte, ", there ", shown(whole),
                               "; train on the last answer alone (--train_on last), or mark "
                               "answers in the template by {% generation %}"));
  }

  const Parts& parts_;
  const jinja::Template& template_;
  std::vector<Json> json_;
  jinja::Values messages_;
  Value tools_;
};

ChatTemplate ChatTemplate::load(const std::string& directory) {
  Parts parts{templates_of(directory), special_tokens(directory)};
  check(!parts.templates.empty(), ErrorCode::kInvalidArgument, directory,
        ": the tokenizer has no chat template; give --chat_template NAME (", joined(names()),
        ") or FILE");
  parts.chosen(false);
  return ChatTemplate(std::make_shared<const Parts>(std::move(parts)));
}

std::vector<std::string> ChatTemplate::names() {
  std::vector<std::string> names;
  for (const BuiltinChatTemplate& one : builtin_chat_templates()) names.emplace_back(one.name);
  return names;
}

ChatTemplate ChatTemplate::choose(const std::string& name_or_file, const std::string& directory) {
  std::string lower = name_or_file;
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  Parts parts{{}, special_tokens(directory)};
  for (const BuiltinChatTemplate& one : builtin_chat_templates()) {
    if (lower == one.name) {
      parts.templates.push_back(
          {"default", one.text,
           jinja::Template::parse(one.text, concat("chat template ", one.name))});
    }
  }
  if (parts.templates.empty()) {
    check(std::filesystem::is_regular_file(name_or_file), ErrorCode::kInvalidArgument,
          "no chat template \"", name_or_file, "\": neither a file nor one of ", joined(names()));
    const std::string text = read_file(name_or_file, kMaxFileBytes);
    parts.templates.push_back({"default", text, jinja::Template::parse(text, name_or_file)});
  }
  return ChatTemplate(std::make_shared<const Parts>(std::move(parts)));
}

std::string ChatTemplate::render(const Json& messages, const std::optional<Json>& tools,
                                 bool add_generation_prompt) const {
  const Chat chat(*parts_, messages, tools);
  return chat.render(chat.messages().size(), add_generation_prompt).text;
}

RenderedChat ChatTemplate::render_for_training(const Json& messages,
                                               const std::optional<Json>& tools,
                                               TrainOn train_on) const {
  const Chat chat(*parts_, messages, tools);
  const size_t count = chat.messages().size();
  jinja::Rendered whole = chat.render(count, false);
  RenderedChat result{std::move(whole.text), {}};
  std::vector<size_t> answers;
  for (size_t i = 0; i < count; ++i) {
    if (is_assistant(chat.messages()[i])) answers.push_back(i);
  }
  const bool last = train_on == TrainOn::kLast;
  if (train_on == TrainOn::kAll) {
    if (!result.text.empty()) result.trained.push_back({0, result.text.size()});
  } else if (!chat.chosen().marks_generation()) {
    for (const size_t turn : answers) {
      if (last && turn != answers.back()) continue;
      const TextSpan span = chat.added(turn, result.text);
      if (span.begin < span.end) result.trained.push_back(span);
    }
  } else {
    if (whole.unplaced_marks) {
      throw jinja::Defect(concat(chat.chosen().origin(),
                                 ": a {% generation %} stands in a macro or a block that is "
                                 "captured, so where its text goes is not known; mark the place "
                                 "where it is printed"));
    }
    // Marks of the chat before the last answer are those of earlier ones.
    const size_t earlier =
        last && !answers.empty() ? chat.render(answers.back(), false).marks.size() : 0;
    for (size_t i = earlier; i < whole.marks.size(); ++i) {
      const jinja::MarkedText& mark = whole.marks[i];
      if (mark.begin < mark.end) result.trained.push_back({mark.begin, mark.end});
    }
  }
  return result;
}

bool ChatTemplate::asks_for_date() const {
  return std::ranges::any_of(parts_->templates, [](const NamedTemplate& one) {
    return one.text.find("strftime_now") != std::string::npos;
  });
}

std::string ChatTemplate::date() const { return jinja::date_text(parts_->day); }

ChatTemplate ChatTemplate::dated(const std::string& date) const {
  Parts parts = *parts_;
  parts.day = jinja::parse_date(date);
  return ChatTemplate(std::make_shared<const Parts>(std::move(parts)));
}

std::vector<std::pair<std::string, std::string>> ChatTemplate::sources() const {
  std::vector<std::pair<std::string, std::string>> sources;
  for (const NamedTemplate& one : parts_->templates) sources.emplace_back(one.name, one.text);
  return sources;
}

bool ChatTemplate::marks_generation() const { return parts_->chosen(false).marks_generation(); }

std::string ChatTemplate::end_of_turn() const {
  constexpr const char* kAnswer = "tessera-answer";
  const Json probe = Json::parse(concat(R"([{"role":"user","content":"question"},)",
                                        R"({"role":"assistant","content":")", kAnswer, "\"}]"),
                                 {}, "probe of a chat template");
  const std::string text = render(probe, std::nullopt, false);
  const size_t at = text.rfind(kAnswer);
  if (at == std::string::npos) return "";
  return std::string(jinja::stripped(
      std::string_view(text).substr(at + std::string_view(kAnswer).size()), true, true));
}

}  // namespace tessera
