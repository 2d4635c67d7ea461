// SPDX-License-Identifier: MIT
#pragma once
// The fine-tuning programs' task: a language model on token rows.
#include "lib/run/prepare.h"
#include "lib/run/run_task.h"

namespace tessera::programs {

std::unique_ptr<RunTask> language_task(Prepared prepared);

}  // namespace tessera::programs
