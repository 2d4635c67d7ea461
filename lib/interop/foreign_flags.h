// SPDX-License-Identifier: MIT
#pragma once
// Flags that users bring from Hugging Face's TrainingArguments, TRL, Megatron-LM, torchtitan and
// older scripts, and what each means here.
#include <span>
#include <string>

#include "lib/settings/flags.h"

namespace tessera::programs {

// All rows; of one name and value the first one counts. A name that ends in ".*" stands for all of
// its section. Also values of our own flags that mean something elsewhere (`--report_to all`).
std::span<const ForeignFlag> foreign_flags();

// See FindForeign.
const ForeignFlag* find_foreign(const std::string& name, const std::string& value,
                                std::string* known_values = nullptr);

}  // namespace tessera::programs
