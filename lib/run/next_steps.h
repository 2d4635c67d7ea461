// SPDX-License-Identifier: MIT
#pragma once
// What a user does with a run that has ended.
#include <string>
#include <vector>

#include "lib/metrics/console_text.h"
#include "lib/run/run_task.h"

namespace tessera::programs {

// Where its files are, and the commands that read them; of the trained model where it was written.
std::vector<metrics::TextRow> next_steps(const RunTask& task, int exit_code);

}  // namespace tessera::programs
