// SPDX-License-Identifier: MIT
#pragma once
// Pieces of rows as spans: queries, and the range of keys that they see.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/core/micro_batch.h"

namespace tessera::ops {

// Consecutive columns of whole rows.
struct RowPiece {
  int64_t first = 0, count = 0;
};

// Queries of some sequences and the keys up to them: the last query sees the last key, the one
// before it one key less, and so on.
struct RowSpan {
  int64_t first_sequence = 0, sequences = 1;
  int64_t first_query = 0, queries = 0;  // index in the given queries, count
  int64_t first_key = 0, keys = 0;       // column in whole rows, count
  // Several packed rows, each a span of its own: int32 [rows + 1], cumulative queries and keys.
  at::Tensor query_offsets, key_offsets;  // undefined: one row
  int64_t longest_query = 0, longest_key = 0;
  double pairs = 0;  // of a query and a key that it sees, without a window
};

// The queries given are those of the pieces, one after the other, for `sequences` sequences. One
// span per piece; of packed rows one per piece and sequence, with offsets.
std::vector<RowSpan> spans_of(const std::vector<RowPiece>& pieces, int64_t sequences,
                              const PackedRows& packed);
// Spans without offsets, of at most so many pairs of a query and a key, or of one query. A window
// (0: none) leaves out the keys that no query of a span sees.
std::vector<RowSpan> chunks_of(const std::vector<RowPiece>& pieces, int64_t sequences,
                               const PackedRows& packed, int64_t window, int64_t most_pairs);

}  // namespace tessera::ops
