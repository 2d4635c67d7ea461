#pragma once
// Chats of tessera-finetune-chat: their template, and rows as people read them.
#include <string>

#include "lib/settings/train_flags.h"
#include "tessera/data/chat_template.h"
#include "tessera/data/token_table.h"
#include "tessera/data/tokenizer.h"

namespace tessera::programs {

// What --chat_template names, else the tokenizer's own. tokenizer: its directory, or its file.
ChatTemplate choose_chat_template(const std::string& name_or_file, const std::string& tokenizer);
std::string chat_template_hash(const ChatTemplate& chat_template);

// The first row with its trained tokens marked: in colour where standard error is a terminal.
std::string first_chat(const TokenTable& rows, const Tokenizer& tokenizer);
// --show_rows: the first rows of --train_file on standard output. Errors as of prepare().
void show_chats(const TrainOptions& options);

}  // namespace tessera::programs
