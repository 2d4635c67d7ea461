// SPDX-License-Identifier: MIT
#pragma once
// Recognises other trainers' configuration files passed to --deepspeed: accelerate's YAML or JSON
// and torchtitan's TOML. They are not run but answered with equivalent flags; other YAML or TOML
// gets an explanation.
#include <optional>
#include <string>

namespace tessera::programs {

// Advice to replace the file; empty if it may be DeepSpeed's. Throws Error(kInvalidArgument) when a
// YAML or TOML file cannot be read.
std::optional<std::string> answer_foreign_config(const std::string& path);

// Throws Error(kInvalidArgument) with that advice.
void refuse_foreign_config(const std::string& path);

}  // namespace tessera::programs
