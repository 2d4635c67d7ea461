// SPDX-License-Identifier: MIT
#pragma once
// Inputs that a reader does not take: what they are, and what to do about them.
#include <string>
#include <string_view>

#include "tessera/core/json.h"

namespace tessera {

// What reads files of data.
enum class DataReader { kChats, kText, kLabels, kSquad, kIds };

// The first bytes of a file, `most` at most.
std::string start_of(const std::string& path, size_t most = 4096);
// What a file that begins like this is, and the remedy: "gzip data are not read; ...". "" for text.
std::string foreign_format(std::string_view start);
// Throws Error(kInvalidArgument) with it, and what refuse_lfs_pointer() throws.
void refuse_foreign_file(const std::string& path);

// ": expected a file named .txt or .jsonl; tessera-finetune-classification reads .csv and .tsv"
std::string expected_names(const std::string& path, DataReader reader);
// For readers of JSON under any name: Error(kInvalidArgument) for a table or a text.
void refuse_table_or_text(const std::string& path, DataReader reader);

// "the row's keys are id, body, source", as a terminal may be shown them.
std::string keys_of(const Json& row);
// What takes rows of such keys, if another reader does: "; tessera-finetune-chat trains chats".
std::string other_reader(const Json& row, DataReader reader);

}  // namespace tessera
