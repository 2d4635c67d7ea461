// SPDX-License-Identifier: MIT
#pragma once
// The data files of a run.
#include "lib/run/prepare.h"

namespace tessera::programs {

// Reads training and validation rows into `run`, whose model configuration and tokenizer are there,
// and records what became of each file. Throws Error(kInvalidArgument) or Error(kDataLoss).
void prepare_data(Prepared& run);

}  // namespace tessera::programs
