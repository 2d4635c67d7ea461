// SPDX-License-Identifier: MIT
#include "tests/parity/ragged_work.h"

#include <random>

#include "tessera/data/data_loader.h"
#include "tests/support/plain_models.h"

namespace tessera::testing {
namespace {

constexpr int64_t kStepRows = 24, kLongest = 9, kSequence = 12;
constexpr int kSteps = 3;

Dataset ragged_rows(int64_t vocabulary, int64_t classes) {
  Dataset dataset;
  dataset.task = classes > 0 ? Task::kClassification : Task::kCausal;
  dataset.num_labels = classes;
  std::mt19937 random(7);
  const auto below = [&](int64_t end) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(end));
  };
  // The last step has too few rows for every micro-batch.
  for (int64_t i = 0; i < (kSteps - 1) * kStepRows + 3; ++i) {
    Example row;
    row.input_ids.resize(static_cast<size_t>(1 + below(kLongest)));
    for (int32_t& id : row.input_ids) id = 1 + below(vocabulary - 1);
    row.labels = row.input_ids;
    for (size_t s = 0; 2 * s < row.labels.size(); ++s) row.labels[s] = kIgnoredLabel;
    if (classes > 0) row.labels = {below(classes)};
    dataset.examples.push_back(std::move(row));
  }
  return dataset;
}

std::vector<MicroBatch> step_of(const TokenTable& rows, size_t step, DataLoaderOptions options) {
  options.micro_batch_size = kStepRows / (options.accumulation_steps * options.data_size);
  DataLoader loader(rows, options);
  for (size_t i = 0; i < step; ++i) loader.next();
  std::vector<MicroBatch> batches = loader.next();
  for (MicroBatch& batch : batches) {
    if (rows.task() == Task::kCausal) choose_head_positions(batch, 1);
  }
  return batches;
}

}  // namespace

ParityWork ragged_work(ModelSpec model, PlainForward forward, int64_t vocabulary, RowsAre are,
                       int64_t classes) {
  ParityWork work = token_work(std::move(model), {.steps = 0}, std::move(forward));
  const TokenTable rows(ragged_rows(vocabulary, classes));
  DataLoaderOptions options{.pad_to = kSequence, .packing = true, .pad_token = 0};
  for (size_t step = 0; step < kSteps; ++step) {
    work.global_batches.push_back(step_of(rows, step, options).front());
  }
  const bool left = are == RowsAre::kPaddedLeft || are == RowsAre::kLeftWithoutPadding;
  if (are != RowsAre::kPacked) {
    options = {
        .padding_side = left ? PaddingSide::kLeft : PaddingSide::kRight,
        .padding_free = are == RowsAre::kWithoutPadding || are == RowsAre::kLeftWithoutPadding,
        .pad_token = 0};
  }
  work.batches = [rows, options](size_t step, const ParityRow& row, int data_rank) {
    DataLoaderOptions own = options;
    own.accumulation_steps = row.accumulation;
    own.data_rank = data_rank;
    own.data_size = row.data();
    return step_of(rows, step, own);
  };
  return work;
}

}  // namespace tessera::testing
