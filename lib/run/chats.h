// SPDX-License-Identifier: MIT
#pragma once
// Chat template of tessera-finetune-chat, and rows in readable form.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/settings/train_flags.h"
#include "tessera/data/chat_examples.h"
#include "tessera/data/chat_record.h"
#include "tessera/data/chat_template.h"
#include "tessera/data/token_table.h"
#include "tessera/data/tokenizer.h"
#include "tessera/generation/generate.h"

namespace tessera::programs {

// The template named by --chat_template, else the tokenizer's own. tokenizer: its directory or
// file.
ChatTemplate choose_chat_template(const std::string& name_or_file, const std::string& tokenizer);
std::string chat_template_hash(const ChatTemplate& chat_template);

// Notices about chats that differ from the published template, shown before training.
std::vector<std::string> how_written(const ChatCounts& counts, const ChatTemplate& chat_template);

// The first row with its trained tokens marked, in colour if standard error is a terminal.
std::string first_chat(const TokenTable& rows, const Tokenizer& tokenizer);
// --show_rows: prints the first rows of --train_file. Throws as prepare().
void show_chats(const TrainOptions& options);

// Text after an answer. If it is not a single token, answers are cut at the text.
struct EndOfTurn {
  std::string text;
  std::optional<int64_t> token;
};
EndOfTurn end_of_turn(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

// Removes the assistant's last message from the chat and returns it. Empty if the last message is
// another role's or not text.
std::optional<std::string> take_last_answer(Json& messages);

// Tokens of the prompt for answering a chat, at most `most`: the oldest exchanges are dropped.
// Empty if not even the last one fits.
std::optional<std::vector<int64_t>> chat_prompt(const ChatRecord& chat,
                                                const ChatTemplate& chat_template,
                                                const Tokenizer& tokenizer, size_t most);

// Text of an answer without its end.
std::string chat_answer(const GeneratedRow& row, const Tokenizer& tokenizer, const EndOfTurn& end);

}  // namespace tessera::programs
