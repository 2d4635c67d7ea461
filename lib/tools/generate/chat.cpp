// SPDX-License-Identifier: MIT
#include "lib/tools/generate/chat.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "lib/core/file.h"
#include "lib/core/printable.h"
#include "lib/data/lines.h"
#include "lib/run/answers.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"
#include "tessera/data/chat_examples.h"

namespace tessera::programs {
namespace {

Json with_message(const Json& messages, bool first, const std::string& role,
                  const std::string& content) {
  JsonWriter out;
  const auto add = [&] {
    out.begin_object().field("role", role).field("content", content).end_object();
  };
  out.begin_array();
  if (first) add();
  for (const Json& message : messages.items()) out.value(message);
  if (!first) add();
  const std::string& text = out.end_array().text();
  return Json::parse(text, {.max_bytes = text.size()}, messages.origin());
}

ChatRecord empty_chat() {
  return {ChatForm::kMessages, Json::parse("[]", {}, "the conversation"), std::nullopt};
}

bool is_blank_line(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

}  // namespace

size_t ChatSetting::longest_prompt() const {
  if (max_positions == 0) return static_cast<size_t>(-1);
  return static_cast<size_t>(std::max<int64_t>(max_positions - max_new_tokens, 1));
}

ChatFile parse_chats(const std::string& content, const std::string& origin,
                     const ChatSetting& setting, const Tokenizer& tokenizer) {
  ChatFile chats;
  for_each_json_text_of(content, origin, [&](std::string_view text, const std::string& place) {
    try {
      ChatRecord chat = read_chat_record(Json::parse(text, {}, place));
      take_last_answer(chat.messages);
      const bool has_system =
          chat.messages.size() > 0 && chat.messages.at(size_t{0}).get("role", "") == "system";
      if (!setting.system.empty() && !has_system) {
        chat.messages = with_message(chat.messages, true, "system", setting.system);
      }
      auto prompt = chat_prompt(chat, setting.chat_template, tokenizer, setting.longest_prompt());
      check(prompt.has_value(), ErrorCode::kInvalidArgument, "the model has ",
            setting.max_positions, " positions for the last turn and an answer of ",
            setting.max_new_tokens, " tokens; shorten it, or lower --max_new_tokens");
      chats.prompts.push_back(std::move(*prompt));
      chats.messages.push_back(std::move(chat.messages));
    } catch (const ChatRecordError& error) {
      fail(ErrorCode::kDataLoss, place, ": ", error.what());
      // The template rejects the chat; malformed JSON has its own position.
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      fail(ErrorCode::kDataLoss, place, ": ", error.what());
    }
  });
  check(!chats.prompts.empty(), ErrorCode::kDataLoss, origin, ": holds no chat");
  return chats;
}

std::string answered_line(size_t index, const ChatFile& chats, const GeneratedRow& row,
                          const ChatSetting& setting, const Tokenizer& tokenizer) {
  const std::string answer = trimmed(chat_answer(row, tokenizer, setting.end));
  return JsonWriter()
      .begin_object()
      .field("index", index)
      .field("messages", with_message(chats.messages[index], false, "assistant", answer))
      .field("text", answer)
      .field("ids", row.ids)
      .field("finish_reason", row.finish == FinishReason::kEndToken ? "stop" : "length")
      .end_object()
      .text();
}

Conversation::Conversation(const ChatSetting& setting, const Tokenizer& tokenizer,
                           ControlChannel& control)
    : setting_(setting),
      tokenizer_(tokenizer),
      control_(control),
      terminal_(control.rank() == 0 && isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0),
      chat_(empty_chat()) {
  if (!setting.system.empty()) add("system", setting.system);
  if (terminal_) log(LogLevel::kInfo, "write to the model; Ctrl-D ends the conversation");
}

void Conversation::add(const char* role, const std::string& content) {
  chat_.messages = with_message(chat_.messages, false, role, content);
}

// The first rank's next line, on every rank.
std::optional<std::string> Conversation::next_line() {
  std::string said;
  if (control_.rank() == 0) {
    std::string line;
    do {
      if (terminal_) std::fputs("> ", stdout);
      std::fflush(stdout);
    } while (std::getline(std::cin, line) && is_blank_line(line));
    if (!std::cin.fail()) said = "+" + line;
  }
  const std::string heard = control_.exchange(said).front();
  if (heard.empty()) return std::nullopt;
  return heard.substr(1);
}

std::optional<std::vector<int64_t>> Conversation::listen() {
  while (const auto line = next_line()) {
    const Json before = chat_.messages;
    try {
      return prompt_of(*line);
    } catch (const Error& error) {  // raised on all ranks, which have the same line
      if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kDataLoss) {
        throw;
      }
      chat_.messages = before;
      if (control_.rank() == 0) {
        log(LogLevel::kWarning, "this line is left out, the conversation goes on: ", error.what());
      }
    }
  }
  if (terminal_) std::fputs("\n", stdout);
  return std::nullopt;
}

std::vector<int64_t> Conversation::prompt_of(const std::string& line) {
  check_utf8(line, "standard input");
  add("user", trimmed(line));
  auto prompt = chat_prompt(chat_, setting_.chat_template, tokenizer_, setting_.longest_prompt());
  check(prompt.has_value(), ErrorCode::kInvalidArgument, "the model has ", setting_.max_positions,
        " positions for this line and an answer of ", setting_.max_new_tokens,
        " tokens; write less, or lower --max_new_tokens");
  return *prompt;
}

void Conversation::say(const GeneratedRow& row) {
  const std::string answer = trimmed(chat_answer(row, tokenizer_, setting_.end));
  add("assistant", answer);
  if (control_.rank() != 0) return;
  const bool seen = isatty(STDOUT_FILENO) != 0;
  std::fputs(((seen ? printable(answer) : answer) + "\n").c_str(), stdout);
  check(std::fflush(stdout) == 0, ErrorCode::kDataLoss, "standard output: cannot be written");
  if (row.finish == FinishReason::kLength && terminal_) {
    log(LogLevel::kInfo, "the answer ends at ", row.ids.size(), " tokens (--max_new_tokens)");
  }
}

}  // namespace tessera::programs
