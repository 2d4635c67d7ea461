// SPDX-License-Identifier: MIT
#pragma once
// Configuration files of other trainers that people hand to --deepspeed: accelerate's YAML or JSON
// and torchtitan's TOML are recognised and answered with our flags, not run; any other YAML or TOML
// is answered with what it is not.
#include <optional>
#include <string>

namespace tessera::programs {

// What to write instead of the file; nothing when it may be DeepSpeed's. Throws
// Error(kInvalidArgument) when a YAML or TOML file cannot be read.
std::optional<std::string> answer_foreign_config(const std::string& path);

// Throws Error(kInvalidArgument) with the answer.
void refuse_foreign_config(const std::string& path);

}  // namespace tessera::programs
