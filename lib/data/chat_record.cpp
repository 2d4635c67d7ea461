// SPDX-License-Identifier: MIT
#include "tessera/data/chat_record.h"

#include <algorithm>

#include "lib/data/foreign_input.h"

namespace tessera {
namespace {

using Pair = std::pair<const char*, const char*>;

// Names of roles in data sets, beside the standard ones.
constexpr Pair kRoles[] = {{"human", "user"},      {"gpt", "assistant"}, {"chatgpt", "assistant"},
                           {"model", "assistant"}, {"bot", "assistant"}, {"observation", "tool"},
                           {"function", "tool"},   {"ipython", "tool"}};
constexpr const char* kKnown[] = {"system", "user", "assistant", "tool", "developer"};

template <typename... Parts>
[[noreturn]] void refuse(const char* reason, const Parts&... sentence) {
  throw ChatRecordError(reason, concat(sentence...));
}

std::string role_of(const Json& message, const std::string& where, bool translates) {
  const char* keys[] = {"role", "from"};
  for (const char* key : keys) {
    const auto role = message.find(key);
    if (!role) continue;
    if (!role->is_string()) refuse("role of no text", where, " has a role that is no text");
    std::string name = role->as_string();
    if (std::ranges::find(kKnown, name) != std::end(kKnown)) return name;
    for (const auto& [other, meant] : kRoles) {
      if (name == other && (translates || name == "function" || name == "ipython")) {
        return translates ? meant : name;
      }
    }
    refuse("unknown role", where, " has the role \"", name,
           "\"; write system, user, assistant or tool");
  }
  refuse("no role", where, " has no role; give it \"role\": system, user, assistant or tool");
}

// The texts of a content's parts, joined.
std::string joined_parts(const Json& content, const std::string& where) {
  std::string text;
  for (const Json& part : content.items()) {
    const auto type = part.is_object() ? part.find("type") : std::nullopt;
    const auto said = part.is_object() ? part.find("text") : std::nullopt;
    if (type && type->is_string() && type->as_string() != "text") {
      refuse("content that is not only text", where, " has a part of type \"", type->as_string(),
             "\"; only text is trained: remove the part, or leave the row out");
    }
    if (!type || !said || !said->is_string()) {
      refuse("content of no text", where,
             " has a part that is no {\"type\": \"text\", \"text\": \"...\"}");
    }
    text += said->as_string();
  }
  return text;
}

// Text content of a message; may be missing beside tool calls.
std::optional<std::string> content_of(const Json& message, const char* key,
                                      const std::string& where, const std::string& role) {
  const auto content = message.find(key);
  const auto calls = message.find("tool_calls");
  const bool may_be_empty = role == "system" || role == "tool" || (calls && calls->is_array());
  if (content && !content->is_string() && !content->is_array()) {
    refuse("content of no text", where,
           " has content that is no text; write it in quotation marks");
  }
  if (!content && !may_be_empty) {
    refuse("no content", where, " has no \"", key, "\"; give it a text or leave the row out");
  }
  if (!content) return std::nullopt;
  std::string text = content->is_array() ? joined_parts(*content, where) : content->as_string();
  if (text.empty() && !may_be_empty) {
    refuse("empty content", where, " says nothing; give it a text or leave the row out");
  }
  return text;
}

class Messages {
 public:
  explicit Messages(const Json& row) : row_(row) {
    writer_.begin_array();
    if (const auto system = row.find("system")) add("system", *system, "\"system\"");
  }

  void add(const char* role, const Json& text, const std::string& where) {
    if (!text.is_string()) {
      refuse("content of no text", where, " is no text; write it in quotation marks");
    }
    const std::string content = text.as_string();
    if (content.empty() && role != std::string_view("system")) {
      refuse("empty content", where, " says nothing; give it a text or leave the row out");
    }
    if (!content.empty()) add(role, content);
  }

  void add(const char* role, const std::string& content) {
    writer_.begin_object().field("role", role).field("content", content).end_object();
    ++count_;
  }

  // Adds messages, also under ShareGPT's key names.
  void add_all(const Json& list, const char* key, bool share_gpt) {
    if (!list.is_array()) refuse("no list of messages", "\"", key, "\" is no list of messages");
    size_t number = 0;
    for (const Json& message : list.items()) {
      const std::string where = concat("message ", ++number, " of \"", key, "\"");
      if (!message.is_object()) refuse("no message", where, " is no object with role and content");
      const std::string role = role_of(message, where, share_gpt);
      const char* said = share_gpt && message.contains("value") ? "value" : "content";
      const auto content = content_of(message, said, where, role);
      writer_.begin_object().field("role", role);
      for (const auto& [name, value] : message.members()) {
        if (name == "role" || name == "from") continue;
        if (name == said && content) {
          writer_.field("content", *content);
        } else {
          writer_.field(name == said ? "content" : name, value);
        }
      }
      writer_.end_object();
    }
    count_ += number;
  }

  ChatRecord record(ChatForm form) {
    if (count_ == 0) refuse("no messages", "the chat has no messages; leave the row out");
    const std::string text = writer_.end_array().text();
    return {form, Json::parse(text, {.max_bytes = text.size()}, row_.origin()), tools(), prompt_};
  }

  // Adds a task, its input if given, and the answer.
  void add_pair(const char* task, const char* about, const char* answer) {
    const Json asked = row_.at(task);
    const auto context = row_.find(about);
    if (context && !context->is_string()) {
      refuse("content of no text", "\"", about, "\" is no text");
    }
    if (context && asked.is_string() && !context->as_string().empty()) {
      add("user", asked.as_string() + "\n\n" + context->as_string());
    } else {
      add("user", asked, concat("\"", task, "\""));
    }
    add("assistant", row_.at(answer), concat("\"", answer, "\""));
  }

  // Messages added so far are the prompt, which is not trained.
  void end_prompt() { prompt_ = count_; }

 private:
  std::optional<Json> tools() const {
    const auto tools = row_.find("tools");
    if (!tools) return std::nullopt;
    if (tools->is_array()) return tools->size() > 0 ? tools : std::nullopt;
    if (tools->is_string()) {  // form in tables without nested columns
      const std::string text = tools->as_string();
      if (text.empty()) return std::nullopt;
      try {
        const Json list = Json::parse(text, {.max_bytes = text.size()}, "\"tools\"");
        if (list.is_array()) return list.size() > 0 ? std::optional(list) : std::nullopt;
      } catch (const Error&) {  // reported below
      }
    }
    refuse("tools of no list", "\"tools\" is no list; write the tools as a JSON array");
  }

  const Json& row_;
  JsonWriter writer_;
  size_t count_ = 0, prompt_ = 0;
};

constexpr const char* kPreference =
    "preference data (\"chosen\", \"rejected\") are not trained by tessera; to train the chosen "
    "answers, write them as \"completion\" beside \"prompt\", or as \"messages\"";

// Rejects a row of unknown form, or without `key`.
[[noreturn]] void refuse_form(const Json& row, const char* reason, const std::string& what) {
  if (row.contains("chosen") && row.contains("rejected")) refuse("preference data", kPreference);
  refuse(reason, what, keys_of(row), other_reader(row, DataReader::kChats));
}

std::string all_forms() {
  std::string text;
  for (size_t i = 0; i < kChatForms; ++i) {
    text += concat(i == 0 ? "" : "; ", chat_form_name(static_cast<ChatForm>(i)));
  }
  return text;
}

}  // namespace

const char* chat_form_name(ChatForm form) {
  constexpr const char* kNames[kChatForms] = {"messages",
                                              "prompt and completion",
                                              "instruction, input and output",
                                              "conversations",
                                              "instruction, context and response",
                                              "question and answer"};
  return kNames[static_cast<size_t>(form)];
}

ChatRecord read_chat_record(const Json& row) {
  if (!row.is_object()) refuse("no object", "the row is no JSON object; write one object a line");
  Messages messages(row);
  if (const auto list = row.find("messages")) {
    messages.add_all(*list, "messages", false);
    return messages.record(ChatForm::kMessages);
  }
  if (const auto list = row.find("conversations")) {
    messages.add_all(*list, "conversations", true);
    return messages.record(ChatForm::kShareGpt);
  }
  if (const auto prompt = row.find("prompt")) {
    const auto completion = row.find("completion");
    if (!completion) {
      refuse_form(row, "no completion", "the row has a \"prompt\" but no \"completion\"; ");
    }
    const auto add = [&](const Json& part, const char* role, const char* key) {
      if (part.is_array()) {
        messages.add_all(part, key, false);
      } else {
        messages.add(role, part, concat("\"", key, "\""));
      }
    };
    add(*prompt, "user", "prompt");
    messages.end_prompt();
    add(*completion, "assistant", "completion");
    return messages.record(ChatForm::kPromptCompletion);
  }
  if (row.find("instruction")) {
    if (row.find("output")) {
      messages.add_pair("instruction", "input", "output");
      return messages.record(ChatForm::kAlpaca);
    }
    if (!row.find("response")) {
      refuse_form(row, "no output",
                  "the row has an \"instruction\" but neither \"output\" nor \"response\"; ");
    }
    messages.add_pair("instruction", row.find("context") ? "context" : "input", "response");
    return messages.record(ChatForm::kDolly);
  }
  if (row.find("question") && row.find("answer")) {
    messages.add_pair("question", "context", "answer");
    return messages.record(ChatForm::kQuestionAnswer);
  }
  refuse_form(row, "no chat",
              concat("the row has the keys of no form (", all_forms(), "), rename its columns; "));
}

}  // namespace tessera
