// SPDX-License-Identifier: MIT
#pragma once
// Chats that tessera-generate answers.
#include <optional>
#include <string>
#include <vector>

#include "lib/run/chats.h"
#include "tessera/comm/control_channel.h"

namespace tessera::programs {

struct ChatSetting {
  ChatTemplate chat_template;
  EndOfTurn end;
  std::string system;         // what it says first; "": nothing
  int64_t max_positions = 0;  // of prompt and answer; 0: any number
  int64_t max_new_tokens = 0;

  size_t longest_prompt() const;
};

struct ChatFile {
  std::vector<Json> messages;  // without the answers that are asked for
  std::vector<std::vector<int64_t>> prompts;
};

// The rows of instruction data in `content`; an answer at a chat's end is asked for anew. Throws
// Error(kDataLoss) with the place of a row that cannot be used.
ChatFile parse_chats(const std::string& content, const std::string& origin,
                     const ChatSetting& setting, const Tokenizer& tokenizer);

// {"index", "messages" with the answer, "text", "ids", "finish_reason"}
std::string answered_line(size_t index, const ChatFile& chats, const GeneratedRow& row,
                          const ChatSetting& setting, const Tokenizer& tokenizer);

// One conversation on standard input and output of the first rank. Collective.
class Conversation {
 public:
  Conversation(const ChatSetting& setting, const Tokenizer& tokenizer, ControlChannel& control);

  // What the model is given after the next line that is not blank; nothing at the end of input. A
  // line that cannot be used is said and left out.
  std::optional<std::vector<int64_t>> listen();
  // The same after this line of the user.
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
