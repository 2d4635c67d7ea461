// SPDX-License-Identifier: MIT
#include "lib/ops/row_spans.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace tessera::ops {
namespace {

// Packed rows of one sequence.
struct SequenceRows {
  size_t first = 0;             // index of its first row among all rows
  std::vector<int64_t> starts;  // columns of its rows, and its end
};

std::vector<SequenceRows> by_sequence(const PackedRows& packed) {
  std::vector<SequenceRows> all;
  for (size_t i = 0; i < packed.lengths.size(); ++i) {
    if (all.empty() || all.back().starts.back() >= packed.sequence) all.push_back({i, {0}});
    all.back().starts.push_back(all.back().starts.back() + packed.lengths[i]);
  }
  return all;
}

double pairs_of(int64_t queries, int64_t keys) {
  return static_cast<double>(queries) * static_cast<double>(2 * keys - queries + 1) / 2;
}

// Columns [first, end) of a piece that one row has.
struct Share {
  int64_t first, end, first_key;
  int64_t queries() const { return end - first; }
  int64_t keys() const { return end - first_key; }
};

// The rows that have part in the piece; first_row: index in the sequence of the first.
std::vector<Share> shares_of(const SequenceRows& rows, const RowPiece& piece, size_t& first_row) {
  std::vector<Share> shares;
  const int64_t end = piece.first + piece.count;
  for (size_t i = 0; i + 1 < rows.starts.size(); ++i) {
    const int64_t first = std::max(rows.starts[i], piece.first),
                  last = std::min(rows.starts[i + 1], end);
    if (first >= last) continue;
    if (shares.empty()) first_row = i;
    shares.push_back({first, last, rows.starts[i]});
  }
  return shares;
}

// All packed rows of a piece and a sequence.
RowSpan packed_span(const PackedRows& packed, int64_t sequence, const SequenceRows& rows,
                    const RowPiece& piece, int64_t first_query) {
  size_t first_row = 0;
  const std::vector<Share> shares = shares_of(rows, piece, first_row);
  const int64_t first_key = shares.front().first_key, end = piece.first + piece.count;
  RowSpan span{.first_sequence = sequence,
               .first_query = first_query,
               .queries = piece.count,
               .first_key = first_key,
               .keys = end - first_key};
  for (const Share& share : shares) {
    span.longest_query = std::max(span.longest_query, share.queries());
    span.longest_key = std::max(span.longest_key, share.keys());
    span.pairs += pairs_of(share.queries(), share.keys());
  }
  // On the device: the lengths of rows are no copy from the host.
  const at::Tensor columns = packed.offsets.narrow(0, static_cast<int64_t>(rows.first + first_row),
                                                   static_cast<int64_t>(shares.size()) + 1) -
                             sequence * packed.sequence;
  span.query_offsets = columns.clamp(piece.first, end) - piece.first;
  span.key_offsets = columns.clamp_max(end) - first_key;
  return span;
}

// Spans of one row each: of a packed row, or of all sequences.
std::vector<RowSpan> apart(const std::vector<RowPiece>& pieces, int64_t sequences,
                           const PackedRows& packed) {
  std::vector<RowSpan> spans;
  int64_t given = 0;
  const std::vector<SequenceRows> rows = by_sequence(packed);
  for (const RowPiece& piece : pieces) {
    if (rows.empty()) {
      spans.push_back({.sequences = sequences,
                       .first_query = given,
                       .queries = piece.count,
                       .keys = piece.first + piece.count});
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      size_t first_row = 0;
      for (const Share& share : shares_of(rows[i], piece, first_row)) {
        spans.push_back({.first_sequence = static_cast<int64_t>(i),
                         .first_query = given + share.first - piece.first,
                         .queries = share.queries(),
                         .first_key = share.first_key,
                         .keys = share.keys()});
      }
    }
    given += piece.count;
  }
  for (RowSpan& span : spans) {
    span.pairs = static_cast<double>(span.sequences) * pairs_of(span.queries, span.keys);
  }
  return spans;
}

}  // namespace

std::vector<RowSpan> spans_of(const std::vector<RowPiece>& pieces, int64_t sequences,
                              const PackedRows& packed) {
  if (!packed.defined()) return apart(pieces, sequences, packed);
  std::vector<RowSpan> spans;
  int64_t given = 0;
  const std::vector<SequenceRows> rows = by_sequence(packed);
  for (const RowPiece& piece : pieces) {
    for (size_t i = 0; i < rows.size(); ++i) {
      spans.push_back(packed_span(packed, static_cast<int64_t>(i), rows[i], piece, given));
    }
    given += piece.count;
  }
  return spans;
}

std::vector<RowSpan> chunks_of(const std::vector<RowPiece>& pieces, int64_t sequences,
                               const PackedRows& packed, int64_t window, int64_t most_pairs) {
  std::vector<RowSpan> chunks;
  for (const RowSpan& span : apart(pieces, sequences, packed)) {
    int64_t rows = std::max<int64_t>(most_pairs / (span.sequences * span.keys), 1);
    if (window > 0) rows = std::min(rows, std::clamp<int64_t>(window, 32, 512));
    const int64_t before = span.keys - span.queries;  // keys before the first query's
    for (int64_t first = 0; first < span.queries; first += rows) {
      const int64_t end = std::min(first + rows, span.queries);
      const int64_t lowest = window > 0 ? std::max<int64_t>(before + first - window + 1, 0) : 0;
      RowSpan chunk = span;
      chunk.first_query += first, chunk.queries = end - first;
      chunk.first_key += lowest, chunk.keys = before + end - lowest;
      chunk.pairs = static_cast<double>(chunk.sequences) * pairs_of(chunk.queries, chunk.keys);
      chunks.push_back(std::move(chunk));
    }
  }
  return chunks;
}

}  // namespace tessera::ops
