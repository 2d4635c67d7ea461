// SPDX-License-Identifier: MIT
#include "tessera/data/packing.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>

#include "lib/core/rounding.h"
#include "lib/data/collate.h"
#include "tessera/core/error.h"
#include "tessera/core/real_tokens.h"

namespace tessera {
namespace {

// Index of the token at which the row is classified.
int64_t pooled_at(const TokenRow& row, const std::optional<int64_t>& pad_token) {
  for (size_t token = row.input_ids.size(); token-- > 0;) {
    const bool counts = pad_token                    ? row.input_ids[token] != *pad_token
                        : row.attention_mask.empty() ? true
                                                     : row.attention_mask[token] != 0;
    if (counts) return static_cast<int64_t>(token);
  }
  return 0;
}

// Lengths of a sequence's rows and of its filling. The filling is split into pieces no longer than
// the step's longest row, so that every model has their positions.
std::vector<int64_t> lengths_of(const std::vector<size_t>& sequence, std::span<const TokenRow> rows,
                                bool last, const PackingOptions& options) {
  std::vector<int64_t> lengths;
  for (const size_t row : sequence) {
    lengths.push_back(static_cast<int64_t>(rows[row].input_ids.size()));
  }
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  int64_t left = (last ? last_sequence_length(tokens, options.sequence_length, options.multiple)
                       : options.sequence_length) -
                 tokens;
  int64_t longest = 1;
  for (const TokenRow& row : rows) {
    longest = std::max(longest, static_cast<int64_t>(row.input_ids.size()));
  }
  for (; left > 0; left -= lengths.back()) lengths.push_back(std::min(left, longest));
  return lengths;
}

struct Laid {
  std::vector<int64_t> lengths;  // of all rows
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;  // causal: one per id, already shifted; else one per row
  std::vector<int64_t> real;    // one per id: 1, or 0 for padding
  std::vector<int64_t> pooled;  // classification: indices of the pooled tokens in ids
};

Laid lay_end_to_end(Task task, std::span<const TokenRow> rows, const SequencesOfRows& sequences,
                    const PackingOptions& options) {
  const bool causal = task == Task::kCausal;
  Laid laid;
  for (const auto& sequence : sequences) {
    const auto lengths = lengths_of(sequence, rows, &sequence == &sequences.back(), options);
    const size_t end = std::accumulate(lengths.begin(), lengths.end(), laid.ids.size());
    std::ranges::copy(lengths, std::back_inserter(laid.lengths));
    for (const size_t index : sequence) {
      const TokenRow& row = rows[index];
      check_packable(row, task, static_cast<int64_t>(index));
      if (causal) {
        for (size_t next = 1; next < row.input_ids.size(); ++next) {
          laid.labels.push_back(row.label_at(next));
        }
        laid.labels.push_back(kIgnoredLabel);
      } else {
        laid.labels.push_back(row.label);
        laid.pooled.push_back(static_cast<int64_t>(laid.ids.size()) +
                              pooled_at(row, options.pad_token));
      }
      std::ranges::copy(row.input_ids, std::back_inserter(laid.ids));
      std::ranges::copy(row.attention_mask, std::back_inserter(laid.real));
      laid.real.resize(laid.ids.size(), 1);
    }
    laid.real.resize(end, 0);
    laid.ids.resize(end, options.pad_id);
    if (causal) laid.labels.resize(end, kIgnoredLabel);
  }
  return laid;
}

int64_t tokens_of(const std::vector<size_t>& sequence, std::span<const int64_t> lengths) {
  return std::accumulate(sequence.begin(), sequence.end(), int64_t{0},
                         [&](int64_t sum, size_t row) { return sum + lengths[row]; });
}

// Takes the first row, and the others that fill a sequence best beside it (subset sum).
std::vector<size_t> take_fullest(std::vector<size_t>& rows, std::span<const int64_t> lengths,
                                 int64_t sequence_length) {
  const int64_t room = sequence_length - lengths[rows.front()];
  // By sum: index (>= 1) of the last row that makes it up; 0: unreachable.
  std::vector<size_t> last(static_cast<size_t>(room) + 1, 0);
  const auto reached = [&](int64_t sum) { return sum == 0 || last[static_cast<size_t>(sum)] > 0; };
  for (size_t place = 1; place < rows.size() && !reached(room); ++place) {
    const int64_t length = lengths[rows[place]];
    for (int64_t sum = room; sum >= length; --sum) {
      if (!reached(sum) && reached(sum - length)) last[static_cast<size_t>(sum)] = place;
    }
  }
  int64_t sum = room;
  while (!reached(sum)) --sum;
  std::vector<size_t> taken;
  while (sum > 0) {
    const auto place = static_cast<ptrdiff_t>(last[static_cast<size_t>(sum)]);
    taken.push_back(rows[static_cast<size_t>(place)]);
    sum -= lengths[taken.back()];
    rows.erase(rows.begin() + place);  // the others have smaller indices
  }
  taken.push_back(rows.front());
  rows.erase(rows.begin());
  return taken;
}

}  // namespace

void check_packable(const TokenRow& row, Task task, int64_t index) {
  check(masked_only_at_end(row, task), ErrorCode::kInvalidArgument, "packing: row ", index,
        " (from 0) has an attention mask that hides tokens before others or supervised ones, which "
        "packed rows cannot have; leave packing out for these data");
}

std::vector<SequencesOfRows> share_out_rows(std::span<const int64_t> lengths, int64_t micro_batches,
                                            int64_t sequence_length) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });

  std::vector<std::vector<size_t>> rows(static_cast<size_t>(micro_batches));
  std::vector<int64_t> tokens(rows.size(), 0);
  for (const size_t row : order) {
    check(lengths[row] <= sequence_length, ErrorCode::kInvalidArgument, "packing: a row has ",
          lengths[row], " tokens, more than a sequence of ", sequence_length);
    const auto m = static_cast<size_t>(std::ranges::min_element(tokens) - tokens.begin());
    tokens[m] += lengths[row];
    rows[m].push_back(row);
  }
  std::vector<SequencesOfRows> shared(rows.size());
  for (size_t m = 0; m < rows.size(); ++m) {
    std::vector<int64_t> filled;
    while (!rows[m].empty()) {
      shared[m].push_back(take_fullest(rows[m], lengths, sequence_length));
      filled.push_back(tokens_of(shared[m].back(), lengths));
    }
    if (filled.empty()) continue;
    const auto emptiest = std::ranges::min_element(filled) - filled.begin();
    if (filled.back() > filled[static_cast<size_t>(emptiest)]) {
      std::swap(shared[m][static_cast<size_t>(emptiest)], shared[m].back());
    }
    for (auto& sequence : shared[m]) std::ranges::sort(sequence);
  }
  return shared;
}

int64_t last_sequence_length(int64_t tokens, int64_t sequence_length, int64_t multiple) {
  const auto power_above =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(sequence_length)));
  const int64_t unit = std::clamp<int64_t>(power_above / 8, 1, rounding_unit(tokens));
  const int64_t length = rounded_up(rounded_up(std::max<int64_t>(tokens, 1), unit), multiple);
  return std::min(length, sequence_length);
}

MicroBatch collate_packed(Task task, std::span<const TokenRow> rows,
                          const SequencesOfRows& sequences, const PackingOptions& options) {
  const bool causal = task == Task::kCausal;
  const SequencesOfRows filling(1);
  Laid laid = lay_end_to_end(task, rows, sequences.empty() ? filling : sequences, options);
  if (!causal && laid.labels.empty()) {  // a head always has some rows
    laid.labels.push_back(kIgnoredLabel);
    laid.pooled.push_back(0);
  }
  const auto tensor = [&](const std::vector<int64_t>& values) {
    const at::Tensor made = at::empty({static_cast<int64_t>(values.size())},
                                      at::TensorOptions(at::kLong).pinned_memory(options.pinned));
    std::ranges::copy(values, made.mutable_data_ptr<int64_t>());
    return made;
  };
  MicroBatch batch;
  batch.token_count = static_cast<int64_t>(laid.ids.size());
  batch.target_count =
      std::ranges::count_if(laid.labels, [](int64_t label) { return label != kIgnoredLabel; });
  for (const auto& sequence : sequences) {
    batch.sample_count += static_cast<int64_t>(sequence.size());
  }
  batch.packed = make_packed_rows(std::move(laid.lengths), options.sequence_length, options.pinned);
  const at::Tensor& positions = batch.packed.positions;
  batch.input_ids = tensor(laid.ids).view_as(positions);
  batch.labels = causal ? tensor(laid.labels).view_as(positions) : tensor(laid.labels);
  if (options.mark_padding && std::ranges::find(laid.real, 0) != laid.real.end()) {
    const at::Tensor real = tensor(laid.real).view_as(positions).to(at::kBool);
    batch.extra[kRealTokens] = options.pinned ? real.pin_memory() : real;
  }
  if (causal) {
    choose_head_positions(batch);
  } else {
    batch.head_positions = tensor(laid.pooled);
  }
  return batch;
}

}  // namespace tessera
