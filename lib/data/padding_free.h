// SPDX-License-Identifier: MIT
#pragma once
// Padded micro-batches without their padding: the same rows end to end.
#include <optional>
#include <vector>

#include "tessera/data/data_loader.h"

namespace tessera {

// What is best for the sequences of micro-batches of these rows, by a sample of them; 0 when all
// rows are equally long, so that nothing is padded.
int64_t padding_free_length(const TokenTable& rows, int64_t micro_batch_size);

// The micro-batch that collate() makes, its rows laid end to end in sequences of this length, the
// last only as long as it must be; nullopt when its numbers depend on padding or on masks
// inside rows.
std::optional<MicroBatch> collate_padding_free(Task task,
                                               const std::vector<std::optional<TokenRow>>& rows,
                                               int64_t sequence_length,
                                               const DataLoaderOptions& options);

}  // namespace tessera
