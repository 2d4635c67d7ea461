// SPDX-License-Identifier: MIT
// Pipelines in the parity table, on in-process ranks: every row must reproduce one rank with the
// whole global batch at once.
#include <ATen/ATen.h>

#include "tessera/core/error.h"
#include "tessera/models/language_model.h"
#include "tests/parity/pipeline_rows.h"
#include "tests/support/plain_models.h"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// hidden + tanh(hidden w^T); layers of this kind may share w.
class Mixer : public Block {
 public:
  explicit Mixer(at::Tensor weight) : weight_(std::move(weight)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch&, const BlockContext&) override {
    return hidden + at::linear(hidden, weight_).tanh();
  }
  std::vector<Parameter> parameters() override { return {{"weight", weight_}}; }

 private:
  at::Tensor weight_;
};

// Six mixers between embedding and head. 3 owns the weight of 0, 4 and 5; 1 that of 2.
ModelSpec mixer_model(const ToyConfig& config) {
  ModelSpec model = toy_language_model(config);
  model.blocks.erase(model.blocks.begin() + 1, model.blocks.end() - 1);
  for (int i = 0; i < 6; ++i) {
    auto build = [=](const BuildContext& context) {
      const std::vector<int64_t> shape{config.hidden, config.hidden};
      if (i != 1 && i != 3) return std::make_unique<Mixer>(tied_placeholder(shape));
      at::Tensor weight = at::arange(shape[0] * shape[1], at::kFloat).add(i).mul(0.7).sin();
      weight = weight.reshape(shape).mul(0.4).to(context.device);
      return std::make_unique<Mixer>(weight.set_requires_grad(true));
    };
    model.blocks.insert(model.blocks.end() - 1, {concat("mixer.", i), build});
  }
  for (int alias : {0, 4, 5}) {
    model.tied.push_back({"mixer.3", "weight", concat("mixer.", alias), "weight"});
  }
  model.tied.push_back({"mixer.1", "weight", "mixer.2", "weight"});
  return model;
}

}  // namespace

TEST_CASE("gpipe and 1f1b over every sharding strategy reproduce the single run") {
  for (bool tied : {true, false}) {
    const ParityWork work = toy_work(tied);
    const RankRecord expected = reference(work);
    CHECK(expected.steps.front().clip < 1.0);  // the test needs effective clipping
    REQUIRE(expected.evaluations.back().counters.size() == 1);
    for (const auto& strategy : kShardingStrategies) {
      for (int stages : {2, 3, 4}) {
        check_row(make_row(strategy, stages, 1, 1, "1f1b"), work, expected);
        check_row(make_row(strategy, stages, 2, 3, "1f1b"), work, expected);
        check_row(make_row(strategy, stages, 1, 8, "1f1b"), work, expected);
        check_row(make_row(strategy, stages, 2, 2, "gpipe"), work, expected);
        check_row(make_row(strategy, stages, 1, 6, "gpipe"), work, expected);
      }
    }
    check_row(make_row("single", 5, 1, 8), work, expected);
  }
}

TEST_CASE("interleaved 1f1b reproduces the single run, also where groups are uneven") {
  const ParityWork work = toy_work(/*tied=*/true, /*layers=*/5, /*rows=*/40);
  const RankRecord expected = reference(work);
  for (const auto& strategy : kShardingStrategies) {
    for (const auto& [stages, chunks] : {std::pair(2, 2), std::pair(2, 3), std::pair(3, 2)}) {
      for (int micro_batches : {1, 5, 8}) {
        const int data = micro_batches == 5 ? 2 : 1;
        check_row(make_row(strategy, stages, data, micro_batches, "interleaved", chunks), work,
                  expected);
      }
    }
  }
}

TEST_CASE("parameters tied over any stages, several on one") {
  const ToyConfig config;
  const ParityWork work = token_work(mixer_model(config), {.steps = 3});
  const RankRecord expected = reference(work);
  for (const auto& strategy : kShardingStrategies) {
    for (int stages : {2, 3, 4, 8}) {
      check_row(make_row(strategy, stages, 1, 4), work, expected);
    }
    check_row(make_row(strategy, 2, 2, 3, "gpipe"), work, expected);
    check_row(make_row(strategy, 2, 2, 4, "interleaved", 2), work, expected);
    check_row(make_row(strategy, 2, 1, 3, "interleaved", 4), work, expected);
  }
}

TEST_CASE("bloom through a pipeline, tied over the first and last stage or not") {
  for (bool tied : {true, false}) {
    const ParityWork work = token_work(causal(bloom_config(tied)), {.vocabulary = 67, .steps = 3},
                                       plain_bloom(bloom_config(tied)));
    const RankRecord expected = reference(work);
    for (const auto& strategy : kShardingStrategies) {
      check_row(make_row(strategy, 4, 1, 8), work, expected);
      check_row(make_row(strategy, 2, 2, 3, "gpipe"), work, expected);
      check_row(make_row(strategy, 2, 2, 4, "interleaved", 2), work, expected);
    }
  }
}

TEST_CASE("pipeline schedules over tensor parallelism, whole sequences or slices between stages") {
  const ParityWork work =
      token_work(causal(bloom_config(true)), {.vocabulary = 67, .sequence = 6, .steps = 3},
                 plain_bloom(bloom_config(true)));
  const RankRecord expected = reference(work);
  for (const std::string strategy : {"ddp", "zero2", "fsdp"}) {
    for (bool sequence_parallel : {false, true}) {
      for (ParityRow row : {make_row(strategy, 3, 1, 4, "gpipe"), make_row(strategy, 4, 1, 2),
                            make_row(strategy, 2, 2, 4, "interleaved", 2)}) {
        row.tensor = 2;
        row.ranks *= 2;
        row.parallel.sequence_parallel = sequence_parallel;
        check_row(row, work, expected);
      }
    }
  }
}

TEST_CASE("a classifier's counters reach every stage") {
  const ParityWork work = with_classes(
      token_work(classifier(bloom_config(true), 3), {.vocabulary = 67, .steps = 3}), 3);
  const RankRecord expected = single_run(work);
  REQUIRE(expected.evaluations.back().counters.size() == 1);
  CHECK(expected.evaluations.back().counters[0] > 0);
  check_row(make_row("zero1", 3, 1, 4, "gpipe"), work, expected);
  check_row(make_row("zero3", 2, 2, 3, "1f1b"), work, expected);
  check_row(make_row("fsdp", 2, 2, 2, "interleaved", 2), work, expected);
}

TEST_CASE("pipeline with recomputation, units, hybrid groups and the reduction boundary") {
  const ParityWork work = toy_work(/*tied=*/true, /*layers=*/5);
  const RankRecord expected = reference(work);
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved"}) {
    for (const auto& strategy : kShardingStrategies) {
      ParityRow row = make_row(strategy, 2, 2, 3, schedule, schedule == "interleaved" ? 3 : 1);
      row.parallel.gradient_checkpointing = true;
      check_row(row, work, expected);
      row.parallel.gradient_checkpointing = false;
      row.parallel.overlap = false;
      check_row(row, work, expected);
      row.parallel.overlap = true;
      row.parallel.bucket_bytes = 1;
      row.parallel.prefetch_blocks = 3;
      row.parallel.reduce_at_boundary = true;
      check_row(row, work, expected);
    }
    for (int variant = 0; variant < 4; ++variant) {
      ParityRow row = make_row("fsdp", 2, 2, 3, schedule, schedule == "interleaved" ? 2 : 1);
      row.parallel.unit_numel = variant == 0 ? 1 << 30 : variant == 1 ? 700 : 0;
      row.parallel.reshard_after_forward = variant != 2;
      if (variant == 3) {
        row = make_row("fsdp", 2, 4, 3, schedule, row.parallel.pipeline.chunks);
        row.parallel.shard_ranks = 2;
      }
      check_row(row, work, expected);
    }
  }
}

TEST_CASE("units of several blocks end where a rank's chunks end") {
  // Two layers per unit, five or six per chunk, so units would straddle chunks; another unit has
  // that slot.
  constexpr int64_t kLayers = 22;
  const ParityWork work = toy_work(/*tied=*/true, kLayers);
  const RankRecord expected = reference(work);
  // fp32 rows are compared with an fp64 oracle, and roundings add up over the layers. 1e-5 is meant
  // for toys of at most four layers, so a quarter per layer.
  constexpr double kTolerance = 1e-5 * kLayers / 4;
  for (int64_t unit_numel : {1000, 1 << 30}) {
    for (int chunks : {1, 2, 3}) {
      ParityRow row = make_row("fsdp", 2, 2, 4, chunks > 1 ? "interleaved" : "1f1b", chunks);
      row.parallel.unit_numel = unit_numel;
      check_row(row, work, expected, kTolerance);
    }
  }
}

TEST_CASE("the loss block shares no unit with blocks whose backward comes later") {
  const ParityWork work = toy_work(/*tied=*/false, /*layers=*/6);
  const RankRecord expected = reference(work);
  for (const std::string schedule : {"gpipe", "1f1b", "zbh1", "interleaved"}) {
    ParityRow row = make_row("fsdp", 2, 2, 4, schedule, schedule == "interleaved" ? 2 : 1);
    // Units of one to five layers, with the remainder in the head's.
    for (int64_t unit_numel : {600, 1000, 2000}) {
      row.parallel.unit_numel = unit_numel;
      for (bool overlap : {false, true}) {
        row.parallel.overlap = overlap;
        check_row(row, work, expected);
      }
    }
  }
}

TEST_CASE("nothing is gathered ahead where equal sizes share buffers") {
  const auto small = sized("bloom", {.vocabulary = 16, .hidden = 16, .heads = 2, .layers = 10});
  const ParityWork work =
      token_work(causal(small), {.vocabulary = 16, .rows = 12, .steps = 2}, plain_bloom(small));
  const RankRecord expected = reference(work);
  for (const std::string strategy : {"zero3", "fsdp"}) {
    for (ParityRow row : {make_row(strategy, 3, 2, 3, "interleaved", 3),
                          make_row(strategy, 3, 1, 4), make_row(strategy, 2, 2, 2, "gpipe")}) {
      row.parallel.prefetch_blocks = 0;
      check_row(row, work, expected);
      row.parallel.persistence_threshold = 0;
      check_row(row, work, expected);
    }
  }
}

TEST_CASE("stages whose optimizer, and parameters, live in host memory") {
  const ParityWork work = toy_work(/*tied=*/true);
  const RankRecord expected = reference(work);
  for (const std::string strategy : {"zero1", "zero2", "zero3", "fsdp"}) {
    for (auto what : {Offload::kOptimizer, Offload::kOptimizerAndParameters}) {
      const bool whole = strategy == "zero1" || strategy == "zero2";
      if (whole && what == Offload::kOptimizerAndParameters) continue;
      ParityRow row = make_row(strategy, 2, 2, 3);
      row.parallel.offload = {.what = what, .pin_memory = false};
      check_row(row, work, expected);
      row.parallel.pipeline = {.schedule = "interleaved", .chunks = 2};
      check_row(row, work, expected);
    }
  }
}

TEST_CASE("pipeline in 16 bit, with loss scaling in fp16") {
  in_16_bit(toy_work(/*tied=*/true), 2, [](at::ScalarType dtype, const ParityWork& work) {
    for (const auto& strategy : kShardingStrategies) {
      for (const std::string schedule : {"1f1b", "interleaved"}) {
        ParityRow row = make_row(strategy, 2, 2, 3, schedule, schedule == "1f1b" ? 1 : 2);
        row.parallel.precision.parameter = dtype;
        check_16_bit_row(row, work);
        row.parallel.precision.gradient = at::kFloat;
        check_16_bit_row(row, work);
      }
    }
  });
}

TEST_CASE("a micro-batch without any target contributes nothing through a pipeline") {
  ParityWork work = toy_work(/*tied=*/true);
  for (auto& batch : work.global_batches) {
    batch.labels.narrow(0, 0, 8).fill_(kIgnoredLabel);  // of the first micro-batches
    batch = rows_of(batch, 0, batch.input_ids.size(0));
  }
  const RankRecord expected = reference(work);
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved"}) {
    check_row(make_row("zero1", 2, 2, 6, schedule, schedule == "interleaved" ? 2 : 1), work,
              expected);
  }
}

TEST_CASE("every rank of a pipeline ends with the same bits") {
  const ParityWork work = toy_work(/*tied=*/true);
  for (const auto& strategy : kShardingStrategies) {
    check_same_bits(make_row(strategy, 3, 2, 4), work);
  }
}
