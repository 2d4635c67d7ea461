// SPDX-License-Identifier: MIT
#include "benchmarks/strategies/row_source.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "lib/data/random_rows.h"
#include "tessera/core/error.h"
#include "tessera/model/model_spec.h"

namespace tessera::bench {

RowSource::RowSource(const Options& options, const DeviceMesh& mesh, int64_t micro_batch,
                     int64_t vocabulary, at::Device device)
    : options_(options),
      micro_batch_(micro_batch),
      vocabulary_(vocabulary),
      data_rank_(mesh.coordinate(Axis::kData)),
      global_rows_(micro_batch * options.run.training.gradient_accumulation_steps *
                   mesh.extent(Axis::kData)),
      device_(device) {
  const std::string& rows = options.rows;
  if (rows == "fixed") return;
  constexpr int64_t kMoreSteps = 8;  // for measuring idle time
  const int64_t steps = options.warmup + options.run.training.max_steps + kMoreSteps;
  const int64_t longest = options.run.data.max_seq_length;
  constexpr int64_t kMeanOfQuestions = 183;  // tokens
  ragged_ = random_rows({.rows = steps * global_rows_,
                         .vocab_size = vocabulary,
                         .longest = longest,
                         .mean_length = std::min(kMeanOfQuestions, longest),
                         .answers_only = options.supervise == "answer"});
  loader_.emplace(
      ragged_,
      DataLoaderOptions{
          .micro_batch_size = micro_batch,
          .accumulation_steps = options.run.training.gradient_accumulation_steps,
          .data_rank = data_rank_,
          .data_size = mesh.extent(Axis::kData),
          .shuffle = false,
          .padding_side = rows == "left" ? PaddingSide::kLeft : PaddingSide::kRight,
          .pad_to = rows == "packed" ? longest : 0,
          .packing = rows == "packed",
          .padding_free = rows != "packed" && options.run.data.padding_free != PaddingFree::kFalse,
          .pinned = device.is_cuda()});
}

std::vector<MicroBatch> RowSource::next() {
  if (!loader_) return draw();
  const int64_t first = loader_->epoch_finished() ? 0 : loader_->state().consumed;
  tokens_ = 0;
  for (int64_t row = first; row < first + global_rows_; ++row) {
    tokens_ += static_cast<int64_t>(ragged_.row(row).input_ids.size());
  }
  return loader_->next();
}

std::vector<MicroBatch> RowSource::draw() {
  const int64_t sequence = options_.run.data.max_seq_length;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(
      block_seed(static_cast<uint64_t>(steps_++), static_cast<size_t>(data_rank_)));
  auto ids = [&] {
    return at::randint(0, vocabulary_, {micro_batch_, sequence}, generator, at::kLong).to(device_);
  };
  tokens_ = global_rows_ * sequence;
  std::vector<MicroBatch> batches(
      static_cast<size_t>(options_.run.training.gradient_accumulation_steps));
  for (MicroBatch& batch : batches) {
    batch.input_ids = ids();
    batch.labels = ids();
    batch.sample_count = micro_batch_;
    batch.token_count = batch.target_count = micro_batch_ * sequence;
  }
  return batches;
}

}  // namespace tessera::bench
