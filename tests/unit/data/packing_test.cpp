// SPDX-License-Identifier: MIT
#include "tessera/data/packing.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tessera/data/data_loader.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/numbered_rows.h"

using namespace tessera;
using tessera::test::contains;

namespace {

// Token k of row i is 100 i + k.
Dataset numbered(const List& lengths, Task task = Task::kCausal) {
  Dataset dataset = numbered_rows(lengths, task, 0);
  if (task == Task::kCausal) return dataset;
  for (Example& row : dataset.examples) row.labels = {1};
  return dataset;
}

List random_lengths(std::mt19937_64& random, size_t count, int64_t most) {
  List lengths;
  for (size_t i = 0; i < count; ++i) {
    lengths.push_back(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)));
  }
  return lengths;
}

// Rows of packed micro-batches, each checked to be complete and in order.
List whole_rows(const std::vector<MicroBatch>& batches, const Dataset& dataset) {
  List found;
  for (const MicroBatch& batch : batches) {
    const List ids = values(batch.input_ids), labels = values(batch.labels);
    const auto& lengths = batch.packed.lengths;
    size_t first = 0, rows = 0;
    for (const int64_t length : lengths) {
      const size_t last = first + static_cast<size_t>(length) - 1;
      CHECK(labels[last] == kIgnoredLabel);
      const bool filling = ids[first] == -1;
      if (!filling) {
        ++rows;
        found.push_back(ids[first] / 100);
        const Example& row = dataset.examples[static_cast<size_t>(found.back())];
        CHECK(static_cast<int64_t>(row.input_ids.size()) == length);
      }
      for (size_t i = first; i < last; ++i) {
        CHECK(ids[i + 1] == (filling ? -1 : ids[i] + 1));
        CHECK(labels[i] == (filling ? kIgnoredLabel : ids[i + 1]));
      }
      first = last + 1;
    }
    CHECK(first == ids.size());
    CHECK(batch.sample_count == static_cast<int64_t>(rows));
    CHECK(batch.token_count == static_cast<int64_t>(ids.size()));
    CHECK(batch.target_count == std::ranges::count_if(labels, [](auto l) { return l >= 0; }));
  }
  return found;
}

}  // namespace

TEST_CASE("rows are shared out whole, none lost or doubled, and balanced by tokens") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 50; ++round) {
    const auto micro_batches = static_cast<int64_t>(1 + random() % 8);
    const int64_t most = 20;
    const List lengths = random_lengths(random, random() % 60, most);
    const auto shares = share_out_rows(lengths, micro_batches, most + 5);
    CHECK(shares == share_out_rows(lengths, micro_batches, most + 5));
    REQUIRE(static_cast<int64_t>(shares.size()) == micro_batches);
    std::vector<size_t> seen;
    List tokens;
    for (const SequencesOfRows& sequences : shares) {
      tokens.push_back(0);
      List filled_up;
      for (const auto& sequence : sequences) {
        CHECK_FALSE(sequence.empty());
        CHECK(std::ranges::is_sorted(sequence));
        int64_t filled = 0;
        for (const size_t row : sequence) filled += lengths[row];
        CHECK(filled <= most + 5);
        tokens.back() += filled;
        filled_up.push_back(filled);
        seen.insert(seen.end(), sequence.begin(), sequence.end());
      }
      CHECK((filled_up.empty() || filled_up.back() == std::ranges::min(filled_up)));
      // No two sequences would fit into one.
      CHECK((sequences.size() < 2 ||
             2 * tokens.back() > static_cast<int64_t>(sequences.size()) * (most + 5)));
    }
    std::ranges::sort(seen);
    std::vector<size_t> all(lengths.size());
    std::iota(all.begin(), all.end(), size_t{0});
    CHECK(seen == all);
    const auto [least, largest] = std::ranges::minmax(tokens);
    CHECK(largest - least <= most);
  }
}

TEST_CASE("a sequence holds the rows that fill it most beside its longest") {
  // First-fit would give 6 + 5, 4 + 3 + 3 and 3.
  const SequencesOfRows full = share_out_rows(List{3, 5, 3, 6, 4, 3}, 1, 12).front();
  CHECK(full == SequencesOfRows{{0, 2, 3}, {1, 4, 5}});
  // SQuAD's lengths: unused tokens with 16 rows per micro-batch in sequences of 512, not counting
  // the last.
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> length(5.0, 0.4);
  int64_t tokens = 0, positions = 0;
  for (int step = 0; step < 50; ++step) {
    List lengths(128);
    for (int64_t& row : lengths) row = std::clamp<int64_t>(std::lround(length(random)), 20, 440);
    for (const SequencesOfRows& sequences : share_out_rows(lengths, 8, 512)) {
      for (size_t s = 0; s + 1 < sequences.size(); ++s) {
        for (const size_t row : sequences[s]) tokens += lengths[row];
        positions += 512;
      }
    }
  }
  CHECK(static_cast<double>(tokens) > 0.98 * static_cast<double>(positions));
}

TEST_CASE("what no sequence can hold is refused with its length") {
  CHECK_THAT(error_of(ErrorCode::kInvalidArgument,
                      [] {
                        share_out_rows(List{3, 9, 2}, 2, 8);
                      }),
             contains("a row has 9 tokens, more than a sequence of 8"));
  const Dataset dataset = numbered({3, 9});
  CHECK_THAT(error_of([&] { DataLoader(dataset, {.pad_to = 8, .packing = true}); }),
             contains("a row has 9 tokens"));
  CHECK_THAT(error_of([&] { DataLoader(dataset, {.packing = true}); }), contains("pad_to"));
  CHECK_THAT(error_of([&] {
               DataLoader(dataset,
                          {.padding_side = PaddingSide::kLeft, .pad_to = 9, .packing = true});
             }),
             contains("padding_side left"));
  Dataset masked = numbered({3});
  masked.examples[0].attention_mask = {1, 0, 1};
  CHECK_THAT(error_of([&] { DataLoader(masked, {.pad_to = 8, .packing = true}).next(); }),
             contains("row 0 (from 0)") && contains("leave packing out"));
  masked.examples[0].attention_mask = {1, 1, 0};
  masked.examples[0].labels[2] = kIgnoredLabel;
  CHECK_NOTHROW(DataLoader(masked, {.pad_to = 8, .packing = true}).next());
}

TEST_CASE("packed steps hold the rows of the padded ones on every layout") {
  std::mt19937_64 random(6);
  const Dataset dataset = numbered(random_lengths(random, 53, 30));
  for (const auto& [micro, accumulation, ranks] :
       {std::tuple{12, 1, 1}, {3, 2, 2}, {1, 3, 4}, {4, 3, 1}}) {
    std::vector<DataLoader> packed, padded;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      DataLoaderOptions options{.micro_batch_size = micro,
                                .accumulation_steps = accumulation,
                                .data_rank = rank,
                                .data_size = ranks,
                                .pad_id = -1};
      padded.emplace_back(dataset, options);
      options.pad_to = 32;
      options.packing = true;
      packed.emplace_back(dataset, options);
    }
    while (padded[0].state().epoch == 0) {
      List expected;
      std::vector<MicroBatch> batches;
      for (size_t rank = 0; rank < packed.size(); ++rank) {
        for (const MicroBatch& batch : padded[rank].next()) {
          for (int64_t b = 0; b < batch.sample_count; ++b) {
            expected.push_back(batch.input_ids[b][0].item<int64_t>() / 100);
          }
        }
        const auto own = packed[rank].next();
        CHECK(static_cast<int>(own.size()) == accumulation);
        batches.insert(batches.end(), own.begin(), own.end());
        CHECK(packed[rank].state() == padded[rank].state());
      }
      List found = whole_rows(batches, dataset);
      std::ranges::sort(found);
      std::ranges::sort(expected);
      CHECK(found == expected);
    }
  }
}

TEST_CASE("the last sequence of a packed micro-batch is only as long as its rows need") {
  std::mt19937_64 random(7);
  for (int64_t tokens = 0; tokens <= 512; ++tokens) {
    const int64_t length = last_sequence_length(tokens, 512);
    CHECK(length % 64 == 0);
    CHECK(length >= std::max<int64_t>(tokens, 1));
    CHECK(length < tokens + 64 + (tokens == 0 ? 1 : 0));
    CHECK(last_sequence_length(tokens, 513, 9) % 9 == 0);
  }
  CHECK(last_sequence_length(7, 7) == 7);
  CHECK(last_sequence_length(2600, 7168) == 2816);  // long last sequences also have few lengths
  CHECK(last_sequence_length(100, 7168) == 128);
  const Dataset dataset = numbered(random_lengths(random, 800, 300));
  DataLoader loader(dataset,
                    {.micro_batch_size = 16, .pad_id = -1, .pad_to = 512, .packing = true});
  int64_t real = 0, computed = 0;
  while (loader.state().epoch == 0) {
    const MicroBatch batch = loader.next()[0];
    CHECK(batch.packed.sequence == 512);
    const List ids = values(batch.input_ids);
    const int64_t tokens = std::ranges::count_if(ids, [](int64_t id) { return id >= 0; });
    real += tokens;
    computed += batch.token_count;
    if (batch.token_count % 512 != 0) {
      CHECK(batch.input_ids.size(0) == 1);
      // No sequence has more free tokens than the last had.
      const int64_t last = batch.token_count % 512;
      CHECK(batch.token_count - tokens < batch.token_count / 512 * (512 - last + 64) + 64);
    }
  }
  CHECK(static_cast<double>(computed) < 1.05 * static_cast<double>(real));
}

TEST_CASE("a micro-batch without rows is a sequence that counts for nothing") {
  for (const Task task : {Task::kCausal, Task::kClassification}) {
    const Dataset dataset = numbered({3}, task);
    DataLoader loader(dataset,
                      {.accumulation_steps = 2, .pad_id = 7, .pad_to = 64, .packing = true});
    const MicroBatch empty = loader.next()[1];
    CHECK(values(empty.input_ids) == List(8, 7));  // the longest allowed last sequence
    CHECK(empty.packed.lengths == List{3, 3, 2});  // no longer than the step's longest row
    CHECK(values(empty.labels) == List(task == Task::kCausal ? 8 : 1, kIgnoredLabel));
    CHECK(empty.sample_count == 0);
    CHECK(empty.token_count == 8);
    CHECK(empty.target_count == 0);
    CHECK(empty.head_positions.defined() == (task == Task::kClassification));
  }
}

TEST_CASE("packed classification rows say where each is pooled") {
  Dataset dataset = numbered({4, 2, 3}, Task::kClassification);
  dataset.examples[0].input_ids = {5, 6, 9, 9};
  dataset.examples[1].labels = {0};
  const auto batch_with = [&](std::optional<int64_t> pad_token) {
    return DataLoader(dataset, {.micro_batch_size = 3,
                                .shuffle = false,
                                .pad_to = 6,
                                .packing = true,
                                .pad_token = pad_token})
        .next()[0];
  };
  const MicroBatch batch = batch_with({});
  CHECK(batch.packed.lengths == List{4, 2, 3});  // and a second sequence of 3
  CHECK(values(batch.labels) == List{1, 0, 1});
  CHECK(values(batch.head_positions) == List{3, 5, 8});
  CHECK(values(batch_with(9).head_positions) == List{1, 5, 8});
  dataset.examples[2].attention_mask = {1, 1, 0};
  CHECK(values(batch_with({}).head_positions) == List{3, 5, 7});
}

TEST_CASE("answer-only labels choose the head's positions, padded and packed") {
  Dataset dataset = numbered(List(8, 100));
  for (Example& row : dataset.examples) std::fill_n(row.labels.begin(), 95, kIgnoredLabel);
  for (const bool packing : {false, true}) {
    const MicroBatch batch =
        DataLoader(dataset, {.micro_batch_size = 8, .pad_to = 200, .packing = packing}).next()[0];
    REQUIRE(batch.head_positions.defined());
    CHECK(batch.head_positions.numel() == 64);
    const at::Tensor chosen = batch.labels.flatten().index_select(0, batch.head_positions);
    CHECK(chosen.ne(kIgnoredLabel).sum().item<int64_t>() == 40);
    CHECK(batch.target_count == 40);
  }
}
