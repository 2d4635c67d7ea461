// SPDX-License-Identifier: MIT
#pragma once
// The files beside a model's weights.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/huggingface.h"

namespace tessera::programs {

// Refuses what is no directory of a model, such as a GGUF file: Error(kDataLoss), or of the format
// (kInvalidArgument). remedy: behind the message where nothing is there.
void check_model_directory(const std::string& path, const std::string& remedy = "");

// What of a folder may be copied into a model that others will see.
struct FilesToCopy {
  std::vector<std::string> paths;    // in the order of their names
  std::vector<std::string> skipped;  // file and reason
};
// The wanted files of the folder but for links out of `home` (default: the folder).
FilesToCopy files_to_copy(const std::string& folder,
                          const std::function<bool(const std::string& name)>& wanted,
                          const std::string& home = "");

// Copies of every tokenizer file of the directory, or of the directory of the file, with or without
// those of chat templates; nothing when it is "". Warns of links out of the directory, which are
// skipped.
void add_tokenizer_files(HuggingFaceWriter& writer, const std::string& directory,
                         bool chat_template = true);
// Those of additional_chat_templates/, if the directory has it. Returns FilesToCopy::skipped.
std::vector<std::string> add_more_templates(HuggingFaceWriter& writer,
                                            const std::string& directory);
// generation_config.json of the directory, if it has one. end_tokens: where generation stops
// instead of where that file says; empty: as it says.
void add_generation_file(HuggingFaceWriter& writer, const std::string& directory,
                         const std::vector<int64_t>& end_tokens = {});
// eos_token_id of the directory's generation_config.json; empty where it says nothing.
std::vector<int64_t> generation_end_tokens(const std::string& directory);

}  // namespace tessera::programs
