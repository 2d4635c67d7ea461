// SPDX-License-Identifier: MIT
#include <ATen/Functions.h>

#include <numeric>
#include <random>

#include "tessera/data/data_loader.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/numbered_rows.h"

using namespace tessera;
using tessera::test::contains;

namespace {

// Row i is 100 i + 1, 100 i + 2, ...; its first token has no label.
Dataset unlabeled_first(const List& lengths, Task task = Task::kCausal) {
  Dataset dataset = numbered_rows(lengths, task, 1);
  for (size_t i = 0; i < lengths.size(); ++i) {
    std::vector<int32_t>& labels = dataset.examples[i].labels;
    labels[0] = kIgnoredLabel;
    if (task == Task::kClassification) labels = {static_cast<int32_t>(i % 3)};
  }
  return dataset;
}

MicroBatch batch_of(const Dataset& dataset, DataLoaderOptions options) {
  options.micro_batch_size = static_cast<int64_t>(dataset.examples.size());
  options.shuffle = false;
  options.padding_free = true;
  return DataLoader(dataset, options).next()[0];
}

// (token, its prediction) of all supervised positions, sorted.
std::vector<std::pair<int64_t, int64_t>> predictions(const MicroBatch& batch) {
  const List ids = values(batch.input_ids), labels = values(batch.labels);
  std::vector<std::pair<int64_t, int64_t>> found;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (labels[i] != kIgnoredLabel) found.emplace_back(ids[i], labels[i]);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

TEST_CASE("micro-batches without padding hold the rows, targets and counts of padded ones") {
  std::mt19937_64 random(3);
  List lengths;
  for (int i = 0; i < 50; ++i) lengths.push_back(2 + static_cast<int64_t>(random() % 60));
  const Dataset dataset = unlabeled_first(lengths);
  for (const PaddingSide side : {PaddingSide::kRight, PaddingSide::kLeft}) {
    DataLoaderOptions options{
        .micro_batch_size = 4, .accumulation_steps = 2, .data_size = 2, .padding_side = side};
    for (options.data_rank = 0; options.data_rank < 2; ++options.data_rank) {
      options.padding_free = false;
      DataLoader padded(dataset, options);
      options.padding_free = true;
      DataLoader free(dataset, options);
      while (padded.state().epoch == 0) {
        const auto expected = padded.next(), given = free.next();
        CHECK(free.state() == padded.state());
        REQUIRE(given.size() == expected.size());
        for (size_t m = 0; m < given.size(); ++m) {
          CHECK(given[m].packed.defined());
          CHECK_FALSE(given[m].attention_mask.defined());
          CHECK(predictions(given[m]) == predictions(expected[m]));
          CHECK(given[m].sample_count == expected[m].sample_count);
          CHECK(given[m].target_count == expected[m].target_count);
          CHECK(given[m].token_count == given[m].input_ids.numel());
        }
      }
    }
  }
}

TEST_CASE("one length of sequences is chosen for all micro-batches, near to what rows need") {
  std::mt19937_64 random(4);
  std::lognormal_distribution<double> length(5.13, 0.4);
  List lengths;
  for (int i = 0; i < 3000; ++i) {
    lengths.push_back(std::clamp<int64_t>(std::lround(length(random)), 2, 302));
  }
  const Dataset dataset = unlabeled_first(lengths);
  DataLoader loader(dataset, {.micro_batch_size = 16, .padding_free = true});
  const int64_t sequence = loader.next()[0].packed.sequence;
  int64_t computed = 0;
  for (int step = 0; step < 100; ++step) {
    const MicroBatch batch = loader.next()[0];
    CHECK(batch.packed.sequence == sequence);
    computed += batch.token_count;
  }
  const int64_t real = std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) * 16 * 100 /
                       static_cast<int64_t>(lengths.size());
  CHECK(static_cast<double>(computed) < 1.08 * static_cast<double>(real));
}

TEST_CASE("rows that fit into one sequence make it no longer than they need") {
  for (const List& lengths : {List{3, 5}, List{2, 2, 60}, List{1, 2}}) {
    const MicroBatch batch = batch_of(unlabeled_first(lengths), {});
    REQUIRE(batch.input_ids.size(0) == 1);
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    CHECK(batch.packed.sequence == batch.input_ids.size(1));
    CHECK(batch.packed.sequence < tokens + 8);
    CHECK(batch.packed.first_keys.sizes() == batch.input_ids.sizes());
  }
}

TEST_CASE("positions are those of the padded row, also with padding on the left") {
  const Dataset dataset = unlabeled_first({3, 5});
  const auto positions_of = [&](const DataLoaderOptions& options) {
    const MicroBatch batch = batch_of(dataset, options);
    const List ids = values(batch.input_ids), positions = values(batch.packed.positions);
    List found;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == 1 || ids[i] == 101) found.push_back(positions[i]);
    }
    std::ranges::sort(found);
    CHECK(batch.packed.position_count > found.back());
    return found;
  };
  CHECK(positions_of({}) == List{0, 0});
  CHECK(positions_of({.padding_side = PaddingSide::kLeft}) == List{0, 2});
  CHECK(positions_of({.padding_side = PaddingSide::kLeft, .pad_to_multiple_of = 4}) == List{3, 5});
}

TEST_CASE("classification rows without padding are pooled where padded ones are") {
  const Dataset dataset = unlabeled_first({3, 90, 2, 70}, Task::kClassification);
  for (const PaddingSide side : {PaddingSide::kRight, PaddingSide::kLeft}) {
    const MicroBatch batch =
        batch_of(dataset, {.padding_side = side, .always_attention_mask = true});
    const List ids = values(batch.input_ids), labels = values(batch.labels);
    const List pooled = values(batch.head_positions);
    CHECK(labels == List{0, 1, 2, 0});  // in row order
    REQUIRE(pooled.size() == 4);
    for (size_t row = 0; row < pooled.size(); ++row) {
      const int64_t last = ids[static_cast<size_t>(pooled[row])];
      CHECK(last / 100 == static_cast<int64_t>(row));
      CHECK(last % 100 == static_cast<int64_t>(dataset.examples[row].input_ids.size()));
    }
  }
  DataLoader filled(dataset, {.micro_batch_size = 6, .shuffle = false, .padding_free = true});
  const MicroBatch batch = filled.next()[0];
  CHECK(values(batch.labels) == List{0, 1, 2, 0, kIgnoredLabel, kIgnoredLabel});
  CHECK(batch.head_positions.numel() == 6);
  CHECK(batch.sample_count == 4);
  CHECK(batch.target_count == 4);
}

TEST_CASE("micro-batches whose numbers depend on padding or masks are padded") {
  const auto padded = [](const Dataset& dataset, const DataLoaderOptions& options = {}) {
    return !batch_of(dataset, options).packed.defined();
  };
  Dataset rows = unlabeled_first({3, 5});
  CHECK_FALSE(padded(rows));
  CHECK(padded(unlabeled_first({4, 4})));  // no padding
  rows.examples[0].attention_mask = {1, 0, 1};
  CHECK(padded(rows));
  // The first token of the shorter row is predicted at its padding.
  rows = unlabeled_first({3, 5});
  rows.examples[0].labels[0] = rows.examples[0].input_ids[0];
  CHECK_FALSE(padded(rows));
  CHECK(padded(rows, {.padding_side = PaddingSide::kLeft}));
  rows = unlabeled_first({3, 5}, Task::kClassification);
  rows.examples[0].input_ids = {7, 7, 7};
  CHECK_FALSE(padded(rows, {.padding_side = PaddingSide::kLeft}));
  CHECK(padded(rows, {.padding_side = PaddingSide::kLeft, .pad_token = 7}));
  for (const DataLoaderOptions& options :
       {DataLoaderOptions{.pad_to = 8}, DataLoaderOptions{.pad_to = 8, .packing = true},
        DataLoaderOptions{.supervise_padding = true},
        DataLoaderOptions{.causal_attention = false}}) {
    CHECK_THAT(error_of(ErrorCode::kInvalidArgument, [&] { batch_of(rows, options); }),
               contains("padding_free leaves padding out"));
  }
}

TEST_CASE("rows that fit into one sequence make it as long as they are") {
  const MicroBatch batch = batch_of(unlabeled_first({70, 75, 80}), {});
  CHECK(batch.input_ids.sizes() == at::IntArrayRef{1, 256});
  CHECK(batch.packed.lengths.size() == 4);
}
