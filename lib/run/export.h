// SPDX-License-Identifier: MIT
#pragma once
// The trained model as a Hugging Face directory, or its adapters as one of PEFT.
#include <string>

#include "lib/run/run_task.h"

namespace tessera::programs {

// Collective. The writing rank puts the model into <output_dir>/final (unless --save_final false).
// Returns XXH3 of all parameters in the order of the model, as fp32 bytes; "" on ranks that do not
// write.
std::string write_final(const RunTask& task, Strategy& strategy, bool writes);

}  // namespace tessera::programs
