// SPDX-License-Identifier: MIT
#pragma once
// A model and rows of the user's own.
#include "lib/run/run_task.h"
#include "tessera/run/training_program.h"

namespace tessera::programs {

// Throws Error(kInvalidArgument) for a task without model or rows, and for rows of which some ranks
// would have none in the last step of an epoch, where their loss cannot leave them out.
std::unique_ptr<RunTask> own_task(const TrainOptions& options, TrainingTask task);

}  // namespace tessera::programs
