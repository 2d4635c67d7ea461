// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Packing: a step's rows end to end in sequences of one length; a micro-batch's last sequence is
/// only as long as its rows need. Attention and positions stay inside each row
/// (MicroBatch::packed), so no result changes.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/data/dataset.h"
#include "tessera/data/token_table.h"

namespace tessera {

/// Rows of each sequence of a micro-batch, as increasing indices into the step's rows.
using SequencesOfRows = std::vector<std::vector<size_t>>;

/// Distributes rows of these lengths over micro-batches: the longest first, each to the micro-batch
/// with the fewest tokens (Graham 1969). Within one, the longest remaining row starts a sequence
/// and the rows that fill it best join it (Fleszar and Hindi 2002). The emptiest sequence is last.
/// Returns one list per micro-batch, perhaps empty; deterministic. Throws Error(kInvalidArgument)
/// for a row longer than a sequence.
std::vector<SequencesOfRows> share_out_rows(std::span<const int64_t> lengths, int64_t micro_batches,
                                            int64_t sequence_length);

/// Length of a micro-batch's last sequence, whose rows have `tokens` tokens: rounded up to few
/// lengths and to the multiple, at most sequence_length.
int64_t last_sequence_length(int64_t tokens, int64_t sequence_length, int64_t multiple = 1);

/// Layout of packed micro-batches.
struct PackingOptions {
  int64_t sequence_length = 0;  ///< tokens of every sequence but the last
  int64_t multiple = 1;         ///< divisor of the last sequence's length
  int64_t pad_id = 0;           ///< token id of padding
  /// Classification: rows are pooled at their last token other than this one (the model's pad
  /// token); without it, at the last unmasked token.
  std::optional<int64_t> pad_token;
  bool pinned = false;  ///< page-locked memory; needs a GPU
  /// Says which tokens are real, where there is padding (tessera/core/real_tokens.h).
  bool mark_padding = false;
};

/// The packed micro-batch of these rows; without rows, a sequence without targets. Throws
/// Error(kInvalidArgument) for a row whose mask matters under causal attention.
MicroBatch collate_packed(Task task, std::span<const TokenRow> rows,
                          const SequencesOfRows& sequences, const PackingOptions& options);

}  // namespace tessera
