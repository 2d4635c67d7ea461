#pragma once
// Configuration files of other trainers that people hand to --deepspeed: accelerate's YAML and
// torchtitan's TOML. They are recognised and answered with our flags, not run.
#include <optional>
#include <string>

namespace tessera::programs {

// What to write instead of the file; nothing when it is none of them. Throws
// Error(kInvalidArgument) when it cannot be read.
std::optional<std::string> answer_foreign_config(const std::string& path);

// Throws Error(kInvalidArgument) with the answer.
void refuse_foreign_config(const std::string& path);

}  // namespace tessera::programs
