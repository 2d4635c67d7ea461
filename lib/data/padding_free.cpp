// SPDX-License-Identifier: MIT
#include "lib/data/padding_free.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

#include "lib/core/rounding.h"
#include "lib/data/collate.h"
#include "tessera/data/packing.h"

namespace tessera {
namespace {

int64_t tokens_of(const TokenRow& row) { return static_cast<int64_t>(row.input_ids.size()); }

// True if padding changes the row's numbers: with padding on the left the first token is predicted
// at the padding, and a row of pad tokens only is classified there.
bool counts_padding(const TokenRow& row, Task task, const std::optional<int64_t>& pad_token) {
  if (task == Task::kCausal) return row.label_at(0) != kIgnoredLabel;
  return pad_token &&
         std::ranges::all_of(row.input_ids, [&](int32_t id) { return id == *pad_token; });
}

// Length of a micro-batch's sequences. Attention is computed by whole sequences, so a single one is
// only as long as needed.
int64_t own_length(const SequencesOfRows& sequences, std::span<const int64_t> lengths,
                   int64_t sequence_length) {
  if (sequences.size() != 1) return sequence_length;
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  return last_sequence_length(tokens, sequence_length);
}

// Approximate cost of a micro-batch, in tokens without attention.
double cost_of(std::span<const int64_t> lengths, int64_t sequence_length) {
  constexpr double kAttention = 4096;  // sequence length at which attention doubles a token's cost
  const SequencesOfRows sequences = share_out_rows(lengths, 1, sequence_length).front();
  int64_t tokens = 0;  // of the last sequence
  for (const size_t row : sequences.back()) tokens += lengths[row];
  const auto whole = static_cast<int64_t>(sequences.size() - 1);
  const int64_t own = own_length(sequences, lengths, sequence_length);
  const int64_t computed = whole * sequence_length + last_sequence_length(tokens, sequence_length);
  const auto attended = static_cast<double>((whole + 1) * own);
  return static_cast<double>(computed) + attended * static_cast<double>(own) / kAttention;
}

// Shifts positions as padding on the left to `length` would.
void shift_positions(MicroBatch& batch, const std::vector<TokenRow>& rows,
                     const SequencesOfRows& sequences, int64_t length) {
  auto* sequence_begin = batch.packed.positions.mutable_data_ptr<int64_t>();
  for (const auto& sequence : sequences) {
    int64_t* position = sequence_begin;
    for (const size_t row : sequence) {
      const int64_t tokens = tokens_of(rows[row]);
      for (int64_t i = 0; i < tokens; ++i) *position++ = length - tokens + i;
    }
    sequence_begin += batch.packed.sequence;
  }
  batch.packed.position_count = std::max(batch.packed.position_count, length);
}

// Reorders labels and classification indices as in a padded micro-batch: in row order, padding rows
// included.
void order_as_rows(MicroBatch& batch, const std::vector<int64_t>& places,
                   const SequencesOfRows& sequences, int64_t count, bool pinned) {
  const auto filled = [&](int64_t value) {
    return at::full({count}, value, at::TensorOptions(at::kLong).pinned_memory(pinned));
  };
  const at::Tensor labels = filled(kIgnoredLabel), positions = filled(0);
  int64_t laid = 0;
  for (const auto& sequence : sequences) {
    for (const size_t row : sequence) {
      labels.mutable_data_ptr<int64_t>()[places[row]] =
          batch.labels.const_data_ptr<int64_t>()[laid];
      positions.mutable_data_ptr<int64_t>()[places[row]] =
          batch.head_positions.const_data_ptr<int64_t>()[laid++];
    }
  }
  batch.labels = labels;
  batch.head_positions = positions;
}

}  // namespace

int64_t padding_free_length(const TokenTable& rows, int64_t micro_batch_size) {
  constexpr int64_t kSampled = 64, kTries = 16;
  const int64_t longest = rows.longest();
  bool equal = true;
  for (int64_t row = 0; equal && row < rows.size(); ++row) {
    equal = tokens_of(rows.row(row)) == longest;
  }
  if (equal) return 0;
  std::vector<std::vector<int64_t>> sample(kSampled);
  uint64_t drawn = 0;
  for (auto& lengths : sample) {
    for (int64_t r = 0; r < micro_batch_size; ++r, drawn += 2654435761U) {
      const uint64_t row = drawn % static_cast<uint64_t>(rows.size());
      lengths.push_back(tokens_of(rows.row(static_cast<int64_t>(row))));
    }
  }
  std::vector<int64_t> tried{rounded_size(micro_batch_size * longest)};  // all rows in one sequence
  for (int64_t i = 0; i < kTries; ++i) tried.push_back(rounded_up(longest, 64) + 64 * i);
  int64_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (const int64_t length : tried) {
    double cost = 0;
    for (const auto& lengths : sample) cost += cost_of(lengths, length);
    if (cost < least) least = cost, best = length;
  }
  return best;
}

std::optional<MicroBatch> collate_padding_free(Task task,
                                               const std::vector<std::optional<TokenRow>>& rows,
                                               int64_t sequence_length,
                                               const DataLoaderOptions& options) {
  const bool left = options.padding_side == PaddingSide::kLeft;
  std::vector<TokenRow> real;
  std::vector<int64_t> lengths, places;  // of the real rows
  int64_t longest = 1;
  for (size_t place = 0; place < rows.size(); ++place) {
    const std::optional<TokenRow>& row = rows[place];
    if (!row) continue;
    real.push_back(*row);
    places.push_back(static_cast<int64_t>(place));
    lengths.push_back(tokens_of(*row));
    longest = std::max(longest, lengths.back());
  }
  longest = rounded_up(longest, options.pad_to_multiple_of);
  for (const TokenRow& row : real) {
    const bool padded_left = left && tokens_of(row) < longest;
    if (!masked_only_at_end(row, task)) return std::nullopt;
    if (padded_left && counts_padding(row, task, options.pad_token)) return std::nullopt;
  }
  const SequencesOfRows sequences = share_out_rows(lengths, 1, sequence_length).front();
  const int64_t own = own_length(sequences, lengths, sequence_length);
  MicroBatch batch =
      collate_packed(task, real, sequences,
                     {.sequence_length = own,
                      .multiple = sequences.size() == 1 ? own : 1,  // its length is rounded already
                      .pad_id = options.pad_id,
                      .pad_token = options.pad_token,
                      .pinned = options.pinned,
                      .mark_padding = options.mark_padding});
  if (task == Task::kClassification) {
    order_as_rows(batch, places, sequences, static_cast<int64_t>(rows.size()), options.pinned);
  }
  if (left) shift_positions(batch, real, sequences, longest);
  return batch;
}

}  // namespace tessera
