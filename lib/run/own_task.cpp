// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lib/core/hash.h"
#include "lib/run/adapters.h"
#include "lib/run/layout.h"
#include "lib/run/run_task.h"
#include "lib/run/update_rules.h"
#include "lib/settings/layout.h"
#include "tessera/core/error.h"
#include "tessera/run/training_program.h"

namespace tessera::programs {
namespace {

// A step takes the next rows of the epoch's order, like a DataLoader; an epoch's last step takes
// those left.
class RowSteps final : public StepSource {
 public:
  struct Options {
    int64_t micro_batch = 1, accumulation = 1;
    int64_t data_rank = 0, data_size = 1;
    bool shuffle = false;
    uint64_t seed = 0;
  };

  RowSteps(const RowSet& rows, const Options& options) : rows_(rows), options_(options) {
    const int64_t left = rows_.count % global_batch_size();
    const int64_t filled = (left + options_.micro_batch - 1) / options_.micro_batch;
    const bool some_empty = left > 0 && filled < options_.accumulation * options_.data_size;
    if (some_empty) empty_batch();  // rejected before the first step, on all ranks
  }

  int64_t global_batch_size() const override {
    return options_.micro_batch * options_.accumulation * options_.data_size;
  }
  int64_t steps_per_epoch() const override {
    return (rows_.count + global_batch_size() - 1) / global_batch_size();
  }
  DataLoaderState state() const override { return state_; }
  void restore(const DataLoaderState& state) override { state_ = state; }

  std::vector<MicroBatch> next() override {
    if (state_.consumed >= rows_.count) state_ = {.epoch = state_.epoch + 1, .consumed = 0};
    std::vector<MicroBatch> micro_batches;
    for (int64_t i = 0; i < options_.accumulation; ++i) {
      const int64_t place = options_.data_rank * options_.accumulation + i;
      micro_batches.push_back(batch_at(state_.consumed + place * options_.micro_batch));
    }
    state_.consumed = std::min(rows_.count, state_.consumed + global_batch_size());
    return micro_batches;
  }

 private:
  MicroBatch batch_at(int64_t begin) {
    const int64_t end = std::min(rows_.count, begin + options_.micro_batch);
    return begin < end ? rows_.batch(order().subspan(begin, end - begin)) : empty_batch();
  }

  // A row without loss, for ranks that only take part in the collectives.
  MicroBatch empty_batch() const {
    const int64_t first = 0;
    MicroBatch batch = rows_.batch({&first, 1});
    check(batch.labels.defined() && at::isIntegralType(batch.labels.scalar_type(), false),
          ErrorCode::kInvalidArgument, "the last batch of an epoch of ", rows_.count,
          " rows has none for some ranks or micro-batches, and only integral labels can be left "
          "out of a loss; choose --per_device_train_batch_size, --per_device_eval_batch_size and "
          "--gradient_accumulation_steps so that whole batches of ",
          global_batch_size(), " rows or fewer fit");
    batch.labels = at::full_like(batch.labels, kIgnoredLabel);
    batch.target_count = batch.sample_count = 0;
    return batch;
  }

  std::span<const int64_t> order() {
    if (order_epoch_ == state_.epoch) return order_;
    if (options_.shuffle) {
      order_ = shuffled_order(rows_.count, options_.seed, state_.epoch);
    } else {
      order_.resize(static_cast<size_t>(rows_.count));
      std::iota(order_.begin(), order_.end(), 0);
    }
    order_epoch_ = state_.epoch;
    return order_;
  }

  const RowSet& rows_;
  const Options options_;
  DataLoaderState state_;
  std::vector<int64_t> order_;
  int64_t order_epoch_ = -1;
};

class OwnTask final : public RunTask {
 public:
  OwnTask(const TrainOptions& options, TrainingTask task)
      : RunTask(options),
        task_(std::move(task)),
        adapter_(add_adapters(task_.model, options.lora, {.base_model = task_.model.name})) {
    add_update_rules(task_.model, options.training);
  }

  Program program() const override { return Program::kOwn; }

  const ModelSpec& model() const override { return task_.model; }
  const TensorSource* weights() const override { return task_.weights; }
  const AdapterConfig* adapter() const override { return adapter_ ? &*adapter_ : nullptr; }
  ParallelConfig parallel_config() const override {
    return before_fp8_choice(programs::parallel_config(options()));
  }
  std::string model_config() const override { return "null"; }
  void add_files(HuggingFaceWriter&) const override {}

  int64_t training_rows() const override { return task_.train.count; }
  int64_t validation_rows() const override { return task_.validation.count; }
  std::unique_ptr<StepSource> steps(const Communicator& data, Strategy::Pass pass) const override {
    const TrainOptions& o = options();
    const bool training = pass == Strategy::Pass::kTraining;
    return std::make_unique<RowSteps>(
        training ? task_.train : task_.validation,
        RowSteps::Options{.micro_batch = training ? o.training.per_device_train_batch_size
                                                  : o.training.per_device_eval_batch_size,
                          .accumulation = training ? o.training.gradient_accumulation_steps : 1,
                          .data_rank = data.rank(),
                          .data_size = data.size(),
                          .shuffle = training && o.data.shuffle,
                          .seed = o.training.seed});
  }
  std::string data_hash() const override { return sha256_hex(task_.data); }
  DataIdentity inputs() const override {
    return {{"the training data", task_.data},
            {"the number of training rows", std::to_string(task_.train.count)},
            {"the number of validation rows", std::to_string(task_.validation.count)}};
  }
  DataIdentity data_identity(int64_t) const override {
    return {{"the training data", task_.data},
            {"rows", std::to_string(task_.train.count)},
            {"--shuffle", options().data.shuffle ? "true" : "false"},
            {"--seed", std::to_string(options().training.seed)}};
  }
  void describe(metrics::RunStartRecord& record, const Communicator& data) const override {
    record.settings = settings::record(options(), program());
    record.exp =
        settings::run_name(options(), record.world_size, !data.device().is_cpu(), program());
    record.dataset = task_.data;
    record.dataset_sha256 = data_hash();
  }

  Predictions score(metrics::EvalRecord&, const EvalReport&, Strategy&, const DeviceMesh&,
                    RunMemory&) const override {
    return {};
  }

 private:
  TrainingTask task_;
  const std::optional<AdapterConfig> adapter_;
};

}  // namespace

std::unique_ptr<RunTask> own_task(const TrainOptions& options, TrainingTask task) {
  check(task.model.block_count() > 0, ErrorCode::kInvalidArgument,
        "TrainingTask::model has no blocks; make it with from_module() or from_sequential()");
  check(task.train.count > 0 && task.train.batch, ErrorCode::kInvalidArgument,
        "TrainingTask::train has no rows; give their count and the function that makes a batch");
  check(task.validation.count == 0 || task.validation.batch, ErrorCode::kInvalidArgument,
        "TrainingTask::validation has rows and no function that makes a batch");
  if (task.model.name.empty()) task.model.name = "own";
  return std::make_unique<OwnTask>(options, std::move(task));
}

}  // namespace tessera::programs
