#pragma once
// The files beside a model's weights.
#include <string>

#include "tessera/checkpoint/huggingface.h"

namespace tessera::programs {

// Copies of every tokenizer file of the directory, or of the directory of the file, with or without
// those of chat templates; nothing when it is "".
void add_tokenizer_files(HuggingFaceWriter& writer, const std::string& directory,
                         bool chat_template = true);
void add_generation_files(HuggingFaceWriter& writer, const std::string& directory);

}  // namespace tessera::programs
