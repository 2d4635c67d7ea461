// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Lays the rows of an optimizer step end to end into sequences of one length, the last of a
/// micro-batch only as long as its rows need. Attention and positions stay inside each row
/// (MicroBatch::packed), so that no number changes.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/data/dataset.h"
#include "tessera/data/token_table.h"

namespace tessera {

/// The rows of each sequence of a micro-batch, by their places in the step, increasing.
using SequencesOfRows = std::vector<std::vector<size_t>>;

/// Shares out rows of these lengths over micro-batches: the longest first, each to the one with the
/// fewest tokens (Graham 1969). There the longest row that is left begins a sequence and the rows
/// that fill it most join it (Fleszar and Hindi 2002); the sequence with the most room
/// is the last. The same on every machine, and one list for every micro-batch, which may be empty.
/// Throws Error(kInvalidArgument) for a row that is longer than a sequence.
std::vector<SequencesOfRows> share_out_rows(std::span<const int64_t> lengths, int64_t micro_batches,
                                            int64_t sequence_length);

/// Tokens of a micro-batch's last sequence, whose rows have so many: rounded up, so that few
/// lengths occur, and to the multiple; at most sequence_length.
int64_t last_sequence_length(int64_t tokens, int64_t sequence_length, int64_t multiple = 1);

/// How packed micro-batches are laid out.
struct PackingOptions {
  int64_t sequence_length = 0;  ///< tokens of every sequence but the last
  int64_t multiple = 1;         ///< of which the last sequence's length is one
  int64_t pad_id = 0;           ///< what fills sequences up
  /// Classification: rows are pooled at their last token that is not this one (the model's pad
  /// token), without it at the last that is not masked.
  std::optional<int64_t> pad_token;
  bool pinned = false;  ///< in page-locked memory; needs a GPU
};

/// The micro-batch of some of a step's rows; without any it is a sequence that counts for nothing.
/// Throws Error(kInvalidArgument) for a row with a mask that causal attention does not make
/// needless.
MicroBatch collate_packed(Task task, std::span<const TokenRow> rows,
                          const SequencesOfRows& sequences, const PackingOptions& options);

}  // namespace tessera
