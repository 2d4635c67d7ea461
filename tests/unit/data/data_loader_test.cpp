// SPDX-License-Identifier: MIT
#include "tessera/data/data_loader.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>

#include "tessera/core/real_tokens.h"
#include "tests/support/messages.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Row i holds the id 10 + i, i % 3 + 1 times, all supervised.
Dataset numbered(int64_t rows, Task task = Task::kCausal) {
  Dataset dataset;
  dataset.task = task;
  for (int32_t i = 0; i < rows; ++i) {
    const std::vector<int32_t> ids(static_cast<size_t>(i % 3 + 1), 10 + i);
    dataset.examples.push_back(
        {ids, task == Task::kCausal ? ids : std::vector<int32_t>{i % 2}, {}});
  }
  return dataset;
}

// Rows of the micro-batches in order; -1 for padding rows.
std::vector<int64_t> rows_of(const std::vector<MicroBatch>& batches) {
  std::vector<int64_t> rows;
  for (const MicroBatch& batch : batches) {
    for (int64_t b = 0; b < batch.input_ids.size(0); ++b) {
      const int64_t id = batch.input_ids[b][0].item<int64_t>();
      rows.push_back(id >= 10 ? id - 10 : -1);
    }
  }
  return rows;
}

std::vector<int64_t> as_list(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

using List = std::vector<int64_t>;

}  // namespace

TEST_CASE("without shuffling step k takes rows k*B..k*B+B-1 and rank r the r-th part") {
  const Dataset dataset = numbered(16);
  for (int64_t rank = 0; rank < 2; ++rank) {
    DataLoader loader(dataset, {.micro_batch_size = 2,
                                .accumulation_steps = 2,
                                .data_rank = rank,
                                .data_size = 2,
                                .shuffle = false});
    CHECK(loader.global_batch_size() == 8);
    CHECK(loader.steps_per_epoch() == 2);
    CHECK(rows_of(loader.next()) == (rank == 0 ? List{0, 1, 2, 3} : List{4, 5, 6, 7}));
    CHECK(rows_of(loader.next()) == (rank == 0 ? List{8, 9, 10, 11} : List{12, 13, 14, 15}));
    CHECK(loader.epoch_finished());
    CHECK(rows_of(loader.next()) == (rank == 0 ? List{0, 1, 2, 3} : List{4, 5, 6, 7}));
    CHECK(loader.state() == DataLoaderState{1, 8});
  }
}

TEST_CASE("the shuffled order depends on seed and epoch only, whatever the layout of ranks") {
  const Dataset dataset = numbered(24);
  // By global step: the rows of all ranks in order.
  const auto epoch_rows = [&](int64_t ranks, int64_t accumulation, int64_t micro, uint64_t seed) {
    List all;
    std::vector<DataLoader> loaders;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      loaders.emplace_back(dataset, DataLoaderOptions{.micro_batch_size = micro,
                                                      .accumulation_steps = accumulation,
                                                      .data_rank = rank,
                                                      .data_size = ranks,
                                                      .seed = seed});
    }
    for (int64_t step = 0; step < 2 * loaders[0].steps_per_epoch(); ++step) {
      for (DataLoader& loader : loaders) {
        for (const int64_t row : rows_of(loader.next())) all.push_back(row);
      }
    }
    return all;
  };
  const List one = epoch_rows(1, 1, 12, 5);
  CHECK(one == epoch_rows(4, 1, 3, 5));
  CHECK(one == epoch_rows(2, 3, 2, 5));
  CHECK(one == epoch_rows(3, 4, 1, 5));
  CHECK(one != epoch_rows(1, 1, 12, 6));
  const List first(one.begin(), one.begin() + 24), second(one.begin() + 24, one.end());
  CHECK(first != second);
  for (List epoch : {first, second}) {
    std::sort(epoch.begin(), epoch.end());
    List everything(24);
    std::iota(everything.begin(), everything.end(), 0);
    CHECK(epoch == everything);
  }
  // Fixed for ever: a run resumed by a later version sees the same order.
  CHECK(shuffled_order(8, 42, 0) == List{7, 6, 3, 5, 2, 4, 1, 0});
  CHECK(shuffled_order(1, 42, 0) == List{0});
}

TEST_CASE("a restored state continues where it was, also with another number of ranks") {
  const Dataset dataset = numbered(20);
  DataLoader straight(dataset, {.micro_batch_size = 4});
  List rows;
  std::vector<DataLoaderState> states;
  for (int step = 0; step < 8; ++step) {
    states.push_back(straight.state());
    for (const int64_t row : rows_of(straight.next())) rows.push_back(row);
  }
  for (size_t step : {1, 4, 5, 7}) {
    List again;
    for (int64_t rank = 0; rank < 2; ++rank) {
      DataLoader resumed(dataset, {.micro_batch_size = 2, .data_rank = rank, .data_size = 2});
      resumed.restore(states[step]);
      for (const int64_t row : rows_of(resumed.next())) again.push_back(row);
    }
    CHECK(again == List(rows.begin() + 4 * step, rows.begin() + 4 * step + 4));
  }
  // Another global batch size: the next rows of the epoch, none twice and none omitted.
  DataLoader wider(dataset, {.micro_batch_size = 8});
  wider.restore({0, 4});
  List rest;
  while (!wider.epoch_finished()) {
    for (const int64_t row : rows_of(wider.next())) rest.push_back(row);
  }
  CHECK(rest == List(rows.begin() + 4, rows.begin() + 20));
  CHECK(error_of([&] {
          wider.restore({0, 21});
        }) == "DataLoader: epoch 0 with 21 rows consumed is no state of a data set with 20 rows");
}

TEST_CASE(
    "the last short batch is dropped or filled, with the same number of steps on every rank") {
  const Dataset dataset = numbered(5);
  int64_t samples = 0, targets = 0;
  for (int64_t rank = 0; rank < 3; ++rank) {
    DataLoader padded(dataset, {.data_rank = rank, .data_size = 3, .shuffle = false});
    DataLoader dropped(
        dataset,
        {.data_rank = rank, .data_size = 3, .shuffle = false, .last_batch = LastBatch::kDrop});
    CHECK(padded.steps_per_epoch() == 2);
    CHECK(dropped.steps_per_epoch() == 1);
    for (int step = 0; step < 2; ++step) {
      const MicroBatch batch = padded.next()[0];
      samples += batch.sample_count;
      targets += batch.target_count;
      if (rank == 2 && step == 1) {
        CHECK(as_list(batch.input_ids) == List{1});  // not the pad id
        CHECK(as_list(batch.labels) == List{kIgnoredLabel});
        CHECK(batch.target_count == 0);
      }
    }
    CHECK(rows_of(dropped.next()) == List{rank});
    CHECK(dropped.epoch_finished());
    CHECK(rows_of(dropped.next()) == List{rank});
  }
  CHECK(samples == 5);
  CHECK(targets == 0 + 1 + 2 + 0 + 1);
  CHECK(
      error_of(
          [&] { DataLoader(dataset, {.micro_batch_size = 6, .last_batch = LastBatch::kDrop}); }) ==
      "DataLoader: the data set has 5 rows, fewer than one global batch of 6; use a smaller batch, "
      "or pad the last one");
}

TEST_CASE("causal rows are padded, shifted and counted; the mask is given only where it matters") {
  Dataset dataset;
  dataset.examples = {{{5, 6, 7}, {-100, 6, 7}, {}}, {{8, 9}, {8, 9}, {}}};
  const auto batch_with = [&](DataLoaderOptions options) {
    options.micro_batch_size = 2;
    options.shuffle = false;
    options.pad_id = 3;
    return DataLoader(dataset, options).next()[0];
  };
  const MicroBatch right = batch_with({});
  CHECK(as_list(right.input_ids) == List{5, 6, 7, 8, 9, 3});
  CHECK(as_list(right.labels) == List{6, 7, -100, 9, -100, -100});
  CHECK_FALSE(right.attention_mask.defined());
  CHECK(right.sample_count == 2);
  CHECK(right.token_count == 6);
  CHECK(right.target_count == 3);

  const MicroBatch fixed = batch_with({.pad_to = 4, .always_attention_mask = true});
  CHECK(as_list(fixed.input_ids) == List{5, 6, 7, 3, 8, 9, 3, 3});
  CHECK(as_list(fixed.attention_mask) == List{1, 1, 1, 0, 1, 1, 0, 0});
  CHECK(fixed.attention_mask.scalar_type() == at::kBool);

  // As in Hugging Face: the padded row is shifted, so the token before the first real one predicts
  // it.
  const MicroBatch left = batch_with({.padding_side = PaddingSide::kLeft});
  CHECK(as_list(left.input_ids) == List{5, 6, 7, 3, 8, 9});
  CHECK(as_list(left.labels) == List{6, 7, -100, 8, 9, -100});
  CHECK(as_list(left.attention_mask) == List{1, 1, 1, 0, 1, 1});

  // Losses of routers leave padding out.
  const MicroBatch marked = batch_with({.pad_to = 4, .mark_padding = true});
  CHECK(as_list(marked.get(kRealTokens)) == List{1, 1, 1, 0, 1, 1, 0, 0});
  CHECK_FALSE(marked.attention_mask.defined());
  CHECK(fixed.extra.empty());
  dataset.examples.pop_back();  // the batch is filled by a row of padding
  const MicroBatch filled = batch_with({.mark_padding = true});
  CHECK(as_list(filled.get(kRealTokens)) == List{1, 1, 1, 0, 0, 0});
  dataset.examples.push_back({{8, 9, 4}, {8, 9, 4}, {}});
  CHECK(batch_with({.mark_padding = true}).extra.empty());
  dataset.examples[1] = {{8, 9}, {8, 9}, {}};
  const MicroBatch packed =
      batch_with({.pad_to = 6, .pad_to_multiple_of = 6, .packing = true, .mark_padding = true});
  CHECK(as_list(packed.input_ids) == List{5, 6, 7, 8, 9, 3});
  CHECK(as_list(packed.get(kRealTokens)) == List{1, 1, 1, 1, 1, 0});

  // labels = input_ids, padding included, as in the published exercises.
  const MicroBatch all = batch_with({.pad_to = 4, .supervise_padding = true});
  CHECK(as_list(all.labels) == List{6, 7, 3, -100, 9, 3, 3, -100});
  CHECK(as_list(all.attention_mask) == List{1, 1, 1, 0, 1, 1, 0, 0});
  CHECK(all.target_count == 6);
  CHECK(error_of([&] { batch_with({.pad_to = 2}); }) ==
        "DataLoader: a row has 3 tokens, more than the length to pad to, 2");
}

TEST_CASE("a row's own mask is kept unless it only marks unsupervised padding at the end") {
  const auto mask_of = [](Example row) {
    Dataset dataset;
    dataset.examples = {std::move(row)};
    return DataLoader(dataset, {}).next()[0].attention_mask;
  };
  CHECK_FALSE(mask_of({{5, 6, 3}, {5, 6, -100}, {1, 1, 0}}).defined());
  CHECK(as_list(mask_of({{5, 6, 3}, {5, 6, 3}, {1, 1, 0}})) == List{1, 1, 0});
  CHECK(as_list(mask_of({{3, 5, 6}, {-100, 5, 6}, {0, 1, 1}})) == List{0, 1, 1});
  CHECK(as_list(mask_of({{5, 3, 6}, {5, -100, 6}, {1, 0, 1}})) == List{1, 0, 1});
}

TEST_CASE("classification batches carry one label a row, and filling rows none") {
  const Dataset dataset = numbered(3, Task::kClassification);
  DataLoader loader(dataset, {.micro_batch_size = 4, .shuffle = false, .causal_attention = false});
  const MicroBatch batch = loader.next()[0];
  CHECK(as_list(batch.input_ids) == List{10, 0, 0, 11, 11, 0, 12, 12, 12, 1, 0, 0});
  CHECK(as_list(batch.labels) == List{0, 1, 0, kIgnoredLabel});
  CHECK(as_list(batch.attention_mask) == List{1, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0, 0});
  CHECK(batch.sample_count == 3);
  CHECK(batch.target_count == 3);
  // A causal model needs a mask for padding at the start, not at the end.
  DataLoader causal(dataset, {.micro_batch_size = 4});
  CHECK_FALSE(causal.next()[0].attention_mask.defined());
  DataLoader left(dataset, {.micro_batch_size = 4, .padding_side = PaddingSide::kLeft});
  CHECK(left.next()[0].attention_mask.defined());
}

TEST_CASE("slices are strict") {
  CHECK(Slice::parse("2:4").of(numbered(5)).examples[0].input_ids[0] == 12);
  CHECK(Slice::parse("2:4").of(numbered(5)).size() == 2);
  CHECK(Slice::parse(":4").of(numbered(5)).size() == 4);
  CHECK(Slice::parse("4:").of(numbered(5)).size() == 1);
  CHECK(Slice::parse(":").of(numbered(5)).size() == 5);
  for (const char* bad :
       {"", "5", "3:3", "4:2", "-1:2", "a:b", "1:2:3", " 1:2", "1:99999999999999999999"}) {
    CAPTURE(bad);
    CHECK(error_of([&] { Slice::parse(bad); }).find("slice \"") == 0);
  }
  CHECK(error_of([] { Slice::parse("2:6").of(numbered(5)); }) ==
        "slice 2:6 does not fit the data, which has 5 rows");
  CHECK(error_of([] { Slice::parse("5:").of(numbered(5)); }) ==
        "slice 5: does not fit the data, which has 5 rows");
}

TEST_CASE("lengths are rounded up to a multiple") {
  const auto width = [](DataLoaderOptions options) {
    options.micro_batch_size = 3;
    return DataLoader(numbered(3), options).next()[0].input_ids.size(1);
  };
  CHECK(width({}) == 3);
  CHECK(width({.pad_to_multiple_of = 8}) == 8);
  CHECK(width({.pad_to_multiple_of = 3}) == 3);
  CHECK(width({.pad_to = 5, .pad_to_multiple_of = 4}) == 8);
  CHECK(error_of([&] { width({.pad_to_multiple_of = 0}); }) ==
        "DataLoader: pad_to_multiple_of is 0, expected at least 1");
}

TEST_CASE("grouped by length, batches are of about one length and the first has the longest row") {
  Dataset dataset;
  for (const int64_t row : shuffled_order(40, 1, 0)) {
    dataset.examples.push_back({std::vector<int32_t>(static_cast<size_t>(row + 1), 1), {}, {}});
    dataset.examples.back().labels = dataset.examples.back().input_ids;
  }
  DataLoader loader(dataset, {.micro_batch_size = 5, .group_by_length = true});
  std::vector<int64_t> lengths;
  while (lengths.size() < 40) {
    const at::Tensor ids = loader.next()[0].input_ids;
    for (int64_t b = 0; b < 5; ++b) lengths.push_back(ids[b].sum().item<int64_t>());
  }
  CHECK(lengths.front() == 40);
  // Pieces of two batches, longest first except for the swapped row.
  for (const size_t first : {0, 10, 20, 30}) {
    CHECK(
        std::is_sorted(lengths.begin() + first + 1, lengths.begin() + first + 10, std::greater()));
  }
  std::sort(lengths.begin(), lengths.end());
  for (int64_t i = 0; i < 40; ++i) CHECK(lengths[static_cast<size_t>(i)] == i + 1);
  CHECK(loader.state() == DataLoaderState{0, 40});
}
