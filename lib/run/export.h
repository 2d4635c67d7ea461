// SPDX-License-Identifier: MIT
#pragma once
// Exports the trained model as a Hugging Face directory, or its adapters as a PEFT one.
#include <string>

#include "lib/run/run_task.h"

namespace tessera::programs {

// Collective. The writing rank writes <output_dir>/final (unless --save_final false). Returns XXH3
// of all parameters in model order as fp32 bytes; "" on other ranks.
std::string write_final(const RunTask& task, Strategy& strategy, bool writes);

}  // namespace tessera::programs
