// SPDX-License-Identifier: MIT
#pragma once
// Parity of steps with rows of many lengths: a data loader's padded or packed micro-batches against
// every row run alone.
#include "tests/parity/parity.h"

namespace tessera::testing {

enum class RowsAre { kPadded, kPaddedLeft, kPacked, kWithoutPadding, kLeftWithoutPadding };

// A model on rows of 1 to 9 tokens, 24 per step and fewer in the last. Their ends are supervised,
// and the head gets those positions. A row of the table reads micro-batches from a DataLoader of
// its layout; the oracle gets rows one by one through forward. classes: 0 for a causal model.
ParityWork ragged_work(ModelSpec model, PlainForward forward, int64_t vocabulary, RowsAre rows,
                       int64_t classes = 0);

}  // namespace tessera::testing
