// SPDX-License-Identifier: MIT
#pragma once
// Recognises inputs that a reader does not support, and suggests a remedy.
#include <string>
#include <string_view>

#include "tessera/core/json.h"

namespace tessera {

// Readers of data files.
enum class DataReader { kChats, kText, kLabels, kSquad, kIds };

// The first bytes of a file, at most `most`.
std::string start_of(const std::string& path, size_t most = 4096);
// Message for a file that starts like this, with the remedy: "gzip data are not read; ...". "" for
// text.
std::string foreign_format(std::string_view start);
// Throws Error(kInvalidArgument) with foreign_format()'s message, or as refuse_lfs_pointer().
void refuse_foreign_file(const std::string& path);

// ": expected a file named .txt or .jsonl; tessera-finetune-classification reads .csv and .tsv"
std::string expected_names(const std::string& path, DataReader reader);
// For JSON readers under any file name: Error(kInvalidArgument) for a table or a plain text.
void refuse_table_or_text(const std::string& path, DataReader reader);

// "the row's keys are id, body, source", made printable.
std::string keys_of(const Json& row);
// The reader for rows with such keys, if another: "; tessera-finetune-chat trains chats".
std::string other_reader(const Json& row, DataReader reader);

}  // namespace tessera
