// SPDX-License-Identifier: MIT
#include "tessera/data/chat_template.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "lib/core/file.h"
#include "lib/core/joined.h"
#include "lib/data/answer_places.h"
#include "lib/data/builtin_chat_templates.h"
#include "lib/data/jinja/date.h"
#include "lib/data/jinja/template.h"
#include "lib/data/jinja/text.h"
#include "lib/data/template_files.h"

namespace tessera {

using jinja::Value;

namespace {

// A message as transformers 5 passes it to templates: without nulls, and the assistant's reasoning
// under three names.
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
  std::chrono::sys_days day = today();  // the same for all rows

  const NamedTemplate& chosen(bool with_tools) const {
    const auto named = [this](const char* name) {
      return std::ranges::find(templates, name, &NamedTemplate::name);
    };
    if (with_tools && named("tool_use") != templates.end()) return *named("tool_use");
    if (named("default") != templates.end()) return *named("default");
    std::vector<std::string> names;
    for (const auto& one : templates) names.push_back(one.name);
    fail(ErrorCode::kInvalidArgument, templates[0].parsed.origin(),
         ": none of the chat templates (", joined(names), ") is called default");
  }
};

// One chat with one template, rendered up to several messages.
class ChatTemplate::Chat {
 public:
  Chat(const Parts& parts, const Json& messages, const std::optional<Json>& tools)
      : parts_(parts), named_(parts.chosen(tools.has_value())), json_(messages.items()) {
    for (const Json& message : json_) messages_.push_back(message_of(message));
    if (tools) tools_ = Value::of(*tools);
  }

  const std::vector<Json>& messages() const { return json_; }
  bool has_training_form() const { return named_.training.has_value(); }
  // Switches to the training form of the template.
  void take_training_form(bool last_answer_only) {
    in_training_form_ = true;
    last_answer_only_ = last_answer_only;
  }
  bool in_training_form() const { return in_training_form_; }
  const jinja::Template& chosen() const {
    return in_training_form_ ? *named_.training : named_.parsed;
  }

  // Indices of the assistant's messages that are trained.
  std::vector<size_t> answers(TrainOn train_on, size_t prompt) const {
    std::vector<size_t> answers;
    for (size_t i = 0; i < json_.size(); ++i) {
      if (is_assistant(json_[i])) answers.push_back(i);
    }
    if (train_on == TrainOn::kLast && !answers.empty()) answers = {answers.back()};
    std::erase_if(answers, [prompt](size_t turn) { return turn < prompt; });
    return answers;
  }

  jinja::Rendered render(size_t count, bool add_generation_prompt) const {
    return render_list({messages_.begin(), messages_.begin() + static_cast<ptrdiff_t>(count)},
                       add_generation_prompt);
  }

  // Spans marked by {% generation %}; a mark of the chat's end joins its last answer's.
  std::vector<TextSpan> marks(const jinja::Rendered& rendered) const {
    std::vector<TextSpan> spans;
    for (const jinja::MarkedText& mark : rendered.marks) spans.push_back({mark.begin, mark.end});
    const size_t count = spans.size();
    if (in_training_form_ && named_.form->marks_end && count > 1 &&
        spans[count - 2].end == spans[count - 1].begin) {
      spans[count - 2].end = spans[count - 1].end;
      spans.pop_back();
    }
    return spans;
  }

  // Text that answer `turn` adds to the chat before it.
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

  // The answer's span in the whole chat.
  std::optional<TextSpan> found(size_t turn, const std::string& whole, size_t earliest) const {
    const auto render_text = [this](const jinja::Values& messages, bool prompt) {
      return render_list(messages, prompt).text;
    };
    return answer_place(render_text, messages_, turn, whole, earliest);
  }

 private:
  jinja::Rendered render_list(jinja::Values messages, bool add_generation_prompt) const {
    Variables variables = parts_.tokens;
    variables.emplace_back("messages", Value::list(std::move(messages)));
    variables.emplace_back("tools", tools_);
    variables.emplace_back("documents", Value());
    variables.emplace_back("add_generation_prompt", add_generation_prompt);
    if (in_training_form_) variables.emplace_back("last_answer_only", last_answer_only_);
    return chosen().render(std::move(variables), parts_.day);
  }

  std::string beginning(size_t count, bool add_generation_prompt) const {
    try {
      return render(count, add_generation_prompt).text;
    } catch (const Error& error) {
      throw jinja::Defect(concat(error.what(), "; this happens when the chat ends ",
                                 add_generation_prompt ? "before" : "after", " message ",
                                 add_generation_prompt ? count + 1 : count,
                                 ", so what the assistant wrote cannot be told"));
    }
  }

  // White space after an end token is not trained; after a bare answer it is the end.
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
    throw jinja::Defect(concat(chosen().origin(), ": ", otherwise, ": ", shown(part), " at byte ",
                               byte, ", there ", shown(whole)));
  }

  const Parts& parts_;
  const NamedTemplate& named_;
  std::vector<Json> json_;
  jinja::Values messages_;
  Value tools_;
  bool in_training_form_ = false, last_answer_only_ = false;
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
      parts.templates.emplace_back("default", one.text, concat("chat template ", one.name));
    }
  }
  if (parts.templates.empty()) {
    check(std::filesystem::is_regular_file(name_or_file), ErrorCode::kInvalidArgument,
          "no chat template \"", name_or_file, "\": neither a file nor one of ", joined(names()));
    const std::string text = read_file(name_or_file, kMaxTemplateBytes);
    parts.templates.emplace_back("default", text, name_or_file);
  }
  return ChatTemplate(std::make_shared<const Parts>(std::move(parts)));
}

std::string ChatTemplate::render(const Json& messages, const std::optional<Json>& tools,
                                 bool add_generation_prompt) const {
  const Chat chat(*parts_, messages, tools);
  return chat.render(chat.messages().size(), add_generation_prompt).text;
}

RenderedChat ChatTemplate::marked_chat(const Chat& chat, TrainOn train_on, size_t prompt) {
  jinja::Rendered whole = chat.render(chat.messages().size(), false);
  if (whole.unplaced_marks) {
    throw jinja::Defect(concat(chat.chosen().origin(),
                               ": a {% generation %} stands in a macro or a block that is "
                               "captured, so where its text goes is not known; mark the place "
                               "where it is printed"));
  }
  RenderedChat result{.in_training_form = chat.in_training_form()};
  // Marks of the chat before the first answer that is trained are those of earlier ones.
  const std::vector<size_t> answers = chat.answers(train_on, prompt);
  const std::vector<size_t> all = chat.answers(TrainOn::kAssistant, 0);
  const size_t first = answers.empty() ? chat.messages().size() : answers.front();
  const bool earlier = !all.empty() && all.front() < first;
  const std::vector<TextSpan> marks = chat.marks(whole);
  for (size_t i = earlier ? chat.marks(chat.render(first, false)).size() : 0; i < marks.size();
       ++i) {
    if (marks[i].begin < marks[i].end) result.trained.push_back(marks[i]);
  }
  result.text = std::move(whole.text);
  return result;
}

RenderedChat ChatTemplate::unmarked_chat(const Chat& chat, TrainOn train_on, size_t prompt) {
  RenderedChat result{.text = chat.render(chat.messages().size(), false).text};
  for (const size_t turn : chat.answers(train_on, prompt)) {
    std::optional<TextSpan> span;
    try {
      span = chat.added(turn, result.text);
    } catch (const jinja::Defect& defect) {
      if (result.rewritten.empty()) result.rewritten = defect.what();
      span = chat.found(turn, result.text, result.trained.empty() ? 0 : result.trained.back().end);
    }
    if (span && span->begin < span->end) result.trained.push_back(*span);
  }
  return result;
}

RenderedChat ChatTemplate::render_for_training(const Json& messages,
                                               const std::optional<Json>& tools, TrainOn train_on,
                                               size_t prompt) const {
  Chat chat(*parts_, messages, tools);
  if (train_on == TrainOn::kAll) {
    RenderedChat result{.text = chat.render(chat.messages().size(), false).text};
    if (!result.text.empty()) result.trained.push_back({0, result.text.size()});
    return result;
  }
  if (chat.has_training_form()) {
    if (train_on == TrainOn::kLast) {  // as it is generated, where the published template does so
      RenderedChat result = unmarked_chat(chat, train_on, prompt);
      if (result.rewritten.empty()) return result;
    }
    chat.take_training_form(train_on == TrainOn::kLast);
  }
  return chat.chosen().marks_generation() ? marked_chat(chat, train_on, prompt)
                                          : unmarked_chat(chat, train_on, prompt);
}

std::optional<TrainingForm> ChatTemplate::training_form() const {
  const auto& form = parts_->chosen(false).form;
  if (!form) return std::nullopt;
  return TrainingForm{form->name, form->differs, form->text};
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

bool ChatTemplate::marks_generation() const {
  return parts_->chosen(false).parsed.marks_generation();
}

std::string ChatTemplate::end_of_turn() const {
  constexpr std::string_view kAnswer = "tessera-answer";
  const std::string exchange = concat(
      R"({"role":"user","content":"question"},{"role":"assistant","content":")", kAnswer, "\"}");
  // Text after the first answer.
  const auto behind = [&](const std::string& messages) {
    const Json probe = Json::parse("[" + messages + "]", {}, "probe of a chat template");
    const std::string text = render(probe, std::nullopt, false);
    const size_t at = text.find(kAnswer);
    return at == std::string::npos ? "" : text.substr(at + kAnswer.size());
  };
  const std::string last = behind(exchange);
  try {  // the end of the whole chat is no end of a turn
    const std::string_view both = common_end(last, behind(exchange + "," + exchange));
    if (!both.empty()) return std::string(jinja::stripped(both, true, true));
  } catch (const Error&) {  // then it is all that there is
  }
  return std::string(jinja::stripped(last, true, true));
}

}  // namespace tessera
