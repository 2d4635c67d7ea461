// SPDX-License-Identifier: MIT
#pragma once
// Chats of tessera-finetune-chat: their template, and rows as people read them.
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

// What --chat_template names, else the tokenizer's own. tokenizer: its directory, or its file.
ChatTemplate choose_chat_template(const std::string& name_or_file, const std::string& tokenizer);
std::string chat_template_hash(const ChatTemplate& chat_template);

// In which chats are not what the published template writes: said before training.
std::vector<std::string> how_written(const ChatCounts& counts, const ChatTemplate& chat_template);

// The first row with its trained tokens marked: in colour where standard error is a terminal.
std::string first_chat(const TokenTable& rows, const Tokenizer& tokenizer);
// --show_rows: the first rows of --train_file on standard output. Errors as of prepare().
void show_chats(const TrainOptions& options);

// What stands behind an answer. Without a token of its own an answer is cut there.
struct EndOfTurn {
  std::string text;
  std::optional<int64_t> token;
};
EndOfTurn end_of_turn(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

// Takes the assistant's last message from the end of the chat; nothing where another's stands there
// or its content is no text.
std::optional<std::string> take_last_answer(Json& messages);

// What a model is given to answer a chat, of at most `most` tokens: the oldest exchanges are left
// out. Nothing where not even the last one fits.
std::optional<std::vector<int64_t>> chat_prompt(const ChatRecord& chat,
                                                const ChatTemplate& chat_template,
                                                const Tokenizer& tokenizer, size_t most);

// The text of an answer, without what ends it.
std::string chat_answer(const GeneratedRow& row, const Tokenizer& tokenizer, const EndOfTurn& end);

}  // namespace tessera::programs
