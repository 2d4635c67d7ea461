// SPDX-License-Identifier: MIT
// Traffic, memory and measured times of a pipeline.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "backends/common/timed_pass.h"
#include "backends/pipeline/measure.h"
#include "lib/testing/player.h"
#include "tessera/backends/pipeline/pipeline.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"
#include "tests/unit/backends/pipelines.h"

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("bytes sent through a pipeline: an activation forth and its gradient back") {
  const ToyConfig config{.hidden = 64};
  const ModelSpec model = toy_language_model(config);
  constexpr int64_t kRows = 4, kSequence = 8, kActivation = kRows * kSequence * 64 * 4;
  for (const auto& [schedule, chunks] : {std::pair("1f1b", 1), std::pair("interleaved", 2)}) {
    play({model, {.pipeline = 2}, pipeline_config(schedule, chunks)},
         [&, schedule = schedule, chunks = chunks](Player& player) {
           Strategy& strategy = player.strategy();
           const std::vector<MicroBatch> batches(5, toy_micro_batch(config, kRows, kSequence, 1));
           strategy.forward_backward(batches);
           strategy.optimizer_step(1e-3);
           const int64_t before = player.mesh().axis(Axis::kPipeline).bytes_sent();
           strategy.forward_backward(batches);
           const int64_t sent = player.mesh().axis(Axis::kPipeline).bytes_sent() - before;
           // Each rank serves one direction of half of the boundaries between parts.
           const int64_t boundaries = 2 * chunks - 1;
           const int64_t result = 2 * 4;  // loss and counter; the tied gradient's sum is separate
           test::require(sent == boundaries * 5 * kActivation + result, "sent ", sent, " bytes");
         });
  }
}

TEST_CASE("1f1b holds the activations of as many micro-batches as it may, gpipe of all") {
  const ToyConfig config{.vocabulary = 16, .hidden = 64, .layers = 6, .tied = false};
  const ModelSpec model = toy_language_model(config);
  constexpr int64_t kRows = 16, kSequence = 16, kMicroBatches = 12;
  CountingAllocator counting;
  std::map<std::string, std::vector<int64_t>> peaks;  // bytes above the step's start
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    for (int64_t micro_batches : {int64_t{1}, kMicroBatches}) {
      auto& peak = peaks[concat(schedule, micro_batches)];
      peak.resize(4);
      ParallelConfig parallel = pipeline_config(schedule);
      parallel.pipeline.balance = "parameters";  // equal stages for both schedules
      play({model, {.pipeline = 4}, parallel}, [&](Player& player) {
        Strategy& strategy = player.strategy();
        const std::vector<MicroBatch> batches(static_cast<size_t>(micro_batches),
                                              toy_micro_batch(config, kRows, kSequence, 1));
        strategy.forward_backward(batches);
        strategy.optimizer_step(1e-3);
        const int64_t live = CountingAllocator::live_bytes();
        CountingAllocator::reset_peak();
        strategy.forward_backward(batches);
        peak[static_cast<size_t>(player.rank())] = CountingAllocator::peak_bytes() - live;
      });
    }
  }
  for (size_t stage = 0; stage < 3; ++stage) {
    INFO("stage " << stage);
    // Saved tensors of two layers per micro-batch: the norm's input and output, up, gelu and the
    // sum.
    const double activation = 4.0 * kRows * kSequence * 64;
    const double saved = static_cast<double>(peaks["gpipe1"][stage]);
    const double all = static_cast<double>(peaks[concat("gpipe", kMicroBatches)][stage]);
    const double flushed = static_cast<double>(peaks[concat("1f1b", kMicroBatches)][stage]);
    CHECK(all >= 0.7 * kMicroBatches * saved);
    CHECK(flushed <= 1.1 * static_cast<double>(4 - stage) * saved + 8 * activation);
  }
}

TEST_CASE("measured costs of blocks: the same on all ranks, blocks of one kind measured once") {
  ModelSpec model = toy_language_model({.vocabulary = 64, .hidden = 32, .layers = 4});
  for (const auto& block : {"layer.0", "layer.1", "layer.2", "layer.3"}) {
    const auto found = std::find_if(model.blocks.begin(), model.blocks.end(),
                                    [&](const auto& builder) { return builder.name == block; });
    found->cost = {.parameters = 4 * 32 * 32, .flops_per_token = 1};
  }
  std::mutex mutex;
  BuildLog built;
  std::set<std::vector<double>> results;
  test::run_ranks(2, [&](Communicator& comm) {
    auto costs = measure_block_costs(built.watched(model, comm.rank()), {}, at::kBFloat16,
                                     toy_micro_batch({.vocabulary = 64}, 8, 16, 1), comm);
    ParallelConfig config = pipeline_config("1f1b");
    config.pipeline.block_costs = costs;
    Player(comm, {model, {.pipeline = 2}, config}).forward_backward({toy_micro_batch({}, 2, 5, 1)});
    const std::lock_guard lock(mutex);
    results.insert(std::move(costs));
  });
  for (const int rank : {0, 1}) {
    CHECK(built.of(rank) == std::multiset<std::string>{"embedding", "layer.0", "head"});
  }
  REQUIRE(results.size() == 1);
  const std::vector<double>& costs = *results.begin();
  REQUIRE(costs.size() == 6);
  for (double cost : costs) CHECK(cost > 0);
  for (size_t layer = 2; layer <= 4; ++layer) CHECK(costs[layer] == costs[1]);
}

TEST_CASE("a block on the clock forms gradients of trained weights alone") {
  class HalfFrozen final : public Block {
   public:
    at::Tensor forward(const at::Tensor&, const MicroBatch&, const BlockContext&) override {
      return frozen_ * trained_;
    }
    std::vector<Parameter> parameters() override {
      return {{.name = "frozen", .tensor = frozen_}, {.name = "trained", .tensor = trained_}};
    }

   private:
    at::Tensor frozen_ = at::ones({4});
    at::Tensor trained_ = at::ones({4}).requires_grad_();
  };
  const BlockBuilder builder{
      .name = "half", .build = [](const BuildContext&) { return std::make_unique<HalfFrozen>(); }};
  const auto block = build_for_timing(builder, {}, at::kBFloat16);
  timed_pass(*block, {}, {}, {.training = true}, at::kCPU);
  const std::vector<Parameter> parameters = block->parameters();
  CHECK_FALSE(parameters[0].tensor.grad().defined());
  CHECK(parameters[0].tensor.scalar_type() == at::kBFloat16);
  CHECK(at::equal(parameters[1].tensor.grad(), at::ones({4}, at::kBFloat16)));
}

TEST_CASE("the time that a rank waits is measured only when asked for") {
  check_measured_waits({toy_language_model(), {.pipeline = 2}, pipeline_config("1f1b")},
                       toy_micro_batch({}, 2, 5, 1));
}
