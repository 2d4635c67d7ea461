// SPDX-License-Identifier: MIT
#pragma once
// Chats for tessera-generate.
#include <optional>
#include <string>
#include <vector>

#include "lib/run/chats.h"
#include "tessera/comm/control_channel.h"

namespace tessera::programs {

struct ChatSetting {
  ChatTemplate chat_template;
  EndOfTurn end;
  std::string system;         // system message; "": none
  int64_t max_positions = 0;  // limit of prompt plus answer; 0: none
  int64_t max_new_tokens = 0;

  size_t longest_prompt() const;
};

struct ChatFile {
  std::vector<Json> messages;  // without the answers to generate
  std::vector<std::vector<int64_t>> prompts;
};

// Parses rows of instruction data; an answer at a chat's end is generated anew. Throws
// Error(kDataLoss) with the position of an unusable row.
ChatFile parse_chats(const std::string& content, const std::string& origin,
                     const ChatSetting& setting, const Tokenizer& tokenizer);

// {"index", "messages" with the answer, "text", "ids", "finish_reason"}
std::string answered_line(size_t index, const ChatFile& chats, const GeneratedRow& row,
                          const ChatSetting& setting, const Tokenizer& tokenizer);

// An interactive conversation on the first rank's standard input and output. Collective.
class Conversation {
 public:
  Conversation(const ChatSetting& setting, const Tokenizer& tokenizer, ControlChannel& control);

  // Tokens of the prompt after the next non-blank line; empty at the end of input. An unusable line
  // is reported and skipped.
  std::optional<std::vector<int64_t>> listen();
  // Tokens of the prompt after this user line.
  std::vector<int64_t> prompt_of(const std::string& line);
  void say(const GeneratedRow& row);

 private:
  std::optional<std::string> next_line();
  void add(const char* role, const std::string& content);

  const ChatSetting& setting_;
  const Tokenizer& tokenizer_;
  ControlChannel& control_;
  const bool terminal_;
  ChatRecord chat_;
};

}  // namespace tessera::programs
