// SPDX-License-Identifier: MIT
#pragma once
// Flags of Hugging Face's TrainingArguments, TRL, Megatron-LM, torchtitan and older scripts, and
// their meaning here.
#include <span>
#include <string>

#include "lib/settings/flags.h"

namespace tessera::programs {

// All rows; the first match of a name and value counts. A name that ends in ".*" covers its
// section. Includes foreign values of our own flags (`--report_to all`).
std::span<const ForeignFlag> foreign_flags();

// See FindForeign.
const ForeignFlag* find_foreign(const std::string& name, const std::string& value,
                                std::string* known_values = nullptr);

}  // namespace tessera::programs
