// SPDX-License-Identifier: MIT
#pragma once
// Data files of a run.
#include "lib/run/prepare.h"

namespace tessera::programs {

// Reads training and validation rows into `run`, whose configuration and tokenizer are loaded, and
// records each file's row counts. Throws Error(kInvalidArgument) or Error(kDataLoss).
void prepare_data(Prepared& run);

}  // namespace tessera::programs
