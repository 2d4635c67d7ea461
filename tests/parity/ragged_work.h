// SPDX-License-Identifier: MIT
#pragma once
// Parity of steps whose rows have many lengths: what a data loader makes of them, padded or packed,
// beside every row run alone.
#include "tests/parity/parity.h"

namespace tessera::testing {

enum class RowsAre { kPadded, kPaddedLeft, kPacked, kWithoutPadding, kLeftWithoutPadding };

// model on rows of 1 to 9 tokens, 24 a step and fewer in the last, of which the end is supervised
// and the head told so. A row of the table takes its micro-batches from a DataLoader of its layout;
// the oracle has them one by one, through forward. classes: 0 for a causal model.
ParityWork ragged_work(ModelSpec model, PlainForward forward, int64_t vocabulary, RowsAre rows,
                       int64_t classes = 0);

}  // namespace tessera::testing
