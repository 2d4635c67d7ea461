// SPDX-License-Identifier: MIT
#pragma once
// The files beside a model's weights.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/checkpoint/huggingface.h"

namespace tessera::programs {

// Copies of every tokenizer file of the directory, or of the directory of the file, with or without
// those of chat templates; nothing when it is "".
void add_tokenizer_files(HuggingFaceWriter& writer, const std::string& directory,
                         bool chat_template = true);
// Those of additional_chat_templates/, if the directory has it.
void add_more_templates(HuggingFaceWriter& writer, const std::string& directory);
// generation_config.json of the directory, if it has one. end_tokens: where generation stops
// instead of where that file says; empty: as it says.
void add_generation_file(HuggingFaceWriter& writer, const std::string& directory,
                         const std::vector<int64_t>& end_tokens = {});
// eos_token_id of the directory's generation_config.json; empty where it says nothing.
std::vector<int64_t> generation_end_tokens(const std::string& directory);

}  // namespace tessera::programs
