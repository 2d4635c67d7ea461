// SPDX-License-Identifier: MIT
#pragma once
// A user's own model and rows.
#include "lib/run/run_task.h"
#include "tessera/run/training_program.h"

namespace tessera::programs {

// Throws Error(kInvalidArgument) for a task without model or rows. Also for rows that leave some
// ranks empty in an epoch's last step, if the loss cannot ignore them.
std::unique_ptr<RunTask> own_task(const TrainOptions& options, TrainingTask task);

}  // namespace tessera::programs
