// SPDX-License-Identifier: MIT
#pragma once
// Files beside a model's weights.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/huggingface.h"

namespace tessera::programs {

// Rejects paths that are not a model directory, such as a GGUF file: Error(kDataLoss), or
// kInvalidArgument for the format. remedy: appended to the message for a missing path.
void check_model_directory(const std::string& path, const std::string& remedy = "");

// Files of a folder that may be copied into a model for others.
struct FilesToCopy {
  std::vector<std::string> paths;    // sorted by name
  std::vector<std::string> skipped;  // file and reason
};
// The wanted files of the folder, without links out of `home` (default: the folder).
FilesToCopy files_to_copy(const std::string& folder,
                          const std::function<bool(const std::string& name)>& wanted,
                          const std::string& home = "");

// Copies every tokenizer file of the directory, or of the file's directory, optionally with chat
// templates. No effect for "". Warns of links out of the directory, which are skipped.
void add_tokenizer_files(HuggingFaceWriter& writer, const std::string& directory,
                         bool chat_template = true);
// Copies the files of additional_chat_templates/, if any. Returns FilesToCopy::skipped.
std::vector<std::string> add_more_templates(HuggingFaceWriter& writer,
                                            const std::string& directory);
// Copies the directory's generation_config.json, if any. end_tokens: replace the file's
// eos_token_id; empty: unchanged.
void add_generation_file(HuggingFaceWriter& writer, const std::string& directory,
                         const std::vector<int64_t>& end_tokens = {});
// eos_token_id of the directory's generation_config.json; empty if not given.
std::vector<int64_t> generation_end_tokens(const std::string& directory);

}  // namespace tessera::programs
