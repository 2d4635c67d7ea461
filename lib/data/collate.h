// SPDX-License-Identifier: MIT
#pragma once
// Rows to a padded micro-batch, one row per sequence.
#include <optional>
#include <vector>

#include "tessera/data/data_loader.h"

namespace tessera {

int64_t rounded_up(int64_t length, int64_t multiple);

// True for a row of real tokens followed by masked, unsupervised positions. A causal model computes
// the same supervised values without the mask then.
bool masked_only_at_end(const TokenRow& row, Task task);

// Throws Error(kInvalidArgument) with the row's index for a row that needs its mask.
void check_packable(const TokenRow& row, Task task, int64_t index);

// nullopt: a padding row that completes the batch.
MicroBatch collate(Task task, const std::vector<std::optional<TokenRow>>& rows,
                   const DataLoaderOptions& options);

}  // namespace tessera
