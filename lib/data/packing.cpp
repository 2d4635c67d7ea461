#include "tessera/data/packing.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>

#include "lib/data/collate.h"
#include "tessera/core/error.h"
#include "tessera/core/rounding.h"

namespace tessera {
namespace {

// Where the row is classified, as a place in it.
int64_t pooled_at(const TokenRow& row, const std::optional<int64_t>& pad_token) {
  for (size_t token = row.input_ids.size(); token-- > 0;) {
    const bool counts = pad_token                    ? row.input_ids[token] != *pad_token
                        : row.attention_mask.empty() ? true
                                                     : row.attention_mask[token] != 0;
    if (counts) return static_cast<int64_t>(token);
  }
  return 0;
}

// Lengths of a sequence's rows, then of what fills it up: in pieces no longer than the step's
// longest row, whose positions every model has.
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
  std::vector<int64_t> labels;  // causal: one an id, already shifted; else one a row
  std::vector<int64_t> pooled;  // classification: the rows' places in ids
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
    }
    laid.ids.resize(end, options.pad_id);
    if (causal) laid.labels.resize(end, kIgnoredLabel);
  }
  return laid;
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

  std::vector<SequencesOfRows> shared(static_cast<size_t>(micro_batches));
  std::vector<int64_t> tokens(shared.size(), 0);
  std::vector<std::vector<int64_t>> room(shared.size());  // of each sequence
  for (const size_t row : order) {
    const int64_t length = lengths[row];
    check(length <= sequence_length, ErrorCode::kInvalidArgument, "packing: a row has ", length,
          " tokens, more than a sequence of ", sequence_length);
    const auto m = static_cast<size_t>(std::ranges::min_element(tokens) - tokens.begin());
    tokens[m] += length;
    auto found = std::ranges::find_if(room[m], [&](int64_t left) { return left >= length; });
    if (found == room[m].end()) {
      shared[m].emplace_back();
      found = room[m].insert(found, sequence_length);
    }
    *found -= length;
    shared[m][static_cast<size_t>(found - room[m].begin())].push_back(row);
  }
  for (size_t m = 0; m < shared.size(); ++m) {
    if (shared[m].empty()) continue;
    const auto emptiest = std::ranges::max_element(room[m]) - room[m].begin();
    if (room[m].back() < room[m][static_cast<size_t>(emptiest)]) {
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
  if (!causal && laid.labels.empty()) {  // a head always has something to do
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
  if (causal) {
    choose_head_positions(batch);
  } else {
    batch.head_positions = tensor(laid.pooled);
  }
  return batch;
}

}  // namespace tessera
