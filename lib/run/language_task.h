// SPDX-License-Identifier: MIT
#pragma once
// A language model on rows of tokens, as the fine-tuning programs train it.
#include "lib/run/prepare.h"
#include "lib/run/run_task.h"

namespace tessera::programs {

std::unique_ptr<RunTask> language_task(Prepared prepared);

}  // namespace tessera::programs
