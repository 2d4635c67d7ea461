// SPDX-License-Identifier: MIT
#pragma once
// Micro-batches without padding: rows laid end to end.
#include <optional>
#include <vector>

#include "tessera/data/data_loader.h"

namespace tessera {

// Best sequence length for micro-batches of these rows, from a sample. 0 when all rows have equal
// length, so that nothing is padded.
int64_t padding_free_length(const TokenTable& rows, int64_t micro_batch_size);

// collate()'s micro-batch with its rows end to end in sequences of this length; the last sequence
// is only as long as needed. nullopt when its numbers depend on padding, or on masks inside rows.
std::optional<MicroBatch> collate_padding_free(Task task,
                                               const std::vector<std::optional<TokenRow>>& rows,
                                               int64_t sequence_length,
                                               const DataLoaderOptions& options);

}  // namespace tessera
