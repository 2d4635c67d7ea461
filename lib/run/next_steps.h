// SPDX-License-Identifier: MIT
#pragma once
// Hints for the user after a run.
#include <string>
#include <vector>

#include "lib/metrics/console_text.h"
#include "lib/run/run_task.h"

namespace tessera::programs {

// Paths of the run's files and commands that read them; also of the trained model if it was
// written.
std::vector<metrics::TextRow> next_steps(const RunTask& task, int exit_code);

}  // namespace tessera::programs
