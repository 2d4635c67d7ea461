// SPDX-License-Identifier: MIT
#pragma once
// Rows to a micro-batch, one row a sequence.
#include <optional>
#include <vector>

#include "tessera/data/data_loader.h"

namespace tessera {

int64_t rounded_up(int64_t length, int64_t multiple);

// Whether a row is real tokens followed by positions that are masked and not supervised: then a
// model with causal attention computes the same supervised numbers without the mask.
bool masked_only_at_end(const TokenRow& row, Task task);

// Throws Error(kInvalidArgument) with the row's number for one that needs its mask.
void check_packable(const TokenRow& row, Task task, int64_t index);

// nullopt: a row that fills the batch.
MicroBatch collate(Task task, const std::vector<std::optional<TokenRow>>& rows,
                   const DataLoaderOptions& options);

}  // namespace tessera
