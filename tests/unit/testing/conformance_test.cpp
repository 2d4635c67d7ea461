// SPDX-License-Identifier: MIT
// The shipped conformance suite on every strategy of the project, and on an external one.
#include "examples/custom_strategy/local_sgd.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/sgd.h"
#include "tessera/testing/strategy_conformance.h"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

std::string violations(const ParallelConfig& config, ConformanceOptions options) {
  const StrategyFactory make = [&](const DeviceMesh& mesh) { return make_strategy(config, mesh); };
  return to_text(check_conformance(make, options));
}

std::string local_sgd(int interval, int ranks, Promise promise, const OptimizerFactory& optimizer) {
  const StrategyFactory make = [&](const DeviceMesh& mesh) {
    return std::make_unique<LocalSgd>(ParallelConfig{}, mesh.axis(Axis::kData), interval);
  };
  return to_text(check_conformance(
      make, {.mesh = {.data = ranks}, .promise = promise, .optimizer = optimizer}));
}

}  // namespace

TEST_CASE("every strategy on the data axis is one") {
  for (const auto& name : strategy_names()) {
    for (int ranks : {1, 2, 3}) {
      if (name == "single" && ranks > 1) continue;
      INFO(name << " on " << ranks << " ranks");
      CHECK(violations({.strategy = name, .persistence_threshold = 20},
                       {.mesh = {.data = ranks}}) == "");
    }
  }
}

TEST_CASE("what fsdp can be told keeps its promise") {
  for (const ParallelConfig& config : std::vector<ParallelConfig>{
           {.strategy = "fsdp", .unit_numel = 300, .gradient_checkpointing = true},
           {.strategy = "fsdp", .reshard_after_forward = false},
           {.strategy = "fsdp", .shard_ranks = 2}}) {
    CHECK(violations(config, {.mesh = {.data = 4}}) == "");
  }
}

TEST_CASE("pipelines keep the promise of what they wrap") {
  for (const PipelineConfig& pipeline : std::vector<PipelineConfig>{
           {.schedule = "gpipe"}, {.schedule = "1f1b"}, {.schedule = "interleaved", .chunks = 2}}) {
    for (const auto& name : {"ddp", "zero3"}) {
      INFO(pipeline.schedule << " over " << name);
      const ParallelConfig config{
          .strategy = name, .persistence_threshold = 20, .pipeline = pipeline};
      CHECK(violations(config, {.mesh = {.pipeline = 2, .data = 2}}) == "");
    }
  }
}

TEST_CASE("tensor parallelism keeps the promise of what it wraps") {
  const auto bloom = sized(
      "bloom", {.vocabulary = 31, .hidden = 24, .heads = 6, .layers = 1, .initializer_range = 0.1});
  const ConformanceWork work{causal(bloom), [](int64_t rows, uint64_t seed) {
                               return toy_micro_batch({.vocabulary = 31}, rows, 5, seed);
                             }};
  for (const ParallelConfig& config : std::vector<ParallelConfig>{
           {.strategy = "ddp"},
           {.strategy = "zero3", .persistence_threshold = 20, .sequence_parallel = true}}) {
    INFO(config.strategy);
    CHECK(violations(config,
                     {.mesh = {.data = 2, .tensor = 2}, .work = work, .optimizer = make_sgd({})}) ==
          "");
  }
}

TEST_CASE("16-bit strategies keep the contract") {
  for (const auto& name : {"ddp", "zero2", "zero3", "fsdp"}) {
    ParallelConfig config{.strategy = name};
    config.precision.parameter = at::kBFloat16;
    INFO(name);
    CHECK(violations(config, {.promise = Promise::kContract}) == "");
  }
}

TEST_CASE("local SGD is a strategy, and data parallelism where it says so") {
  for (int ranks : {1, 2, 3}) {
    INFO(ranks << " ranks");
    CHECK(local_sgd(1, ranks, Promise::kTrajectory, make_sgd({})) == "");
    CHECK(local_sgd(3, ranks, Promise::kContract, make_adamw({})) == "");
  }
  using tessera::test::contains;
  CHECK_THAT(local_sgd(2, 2, Promise::kTrajectory, make_sgd({})), contains("trajectory"));
  CHECK_THAT(local_sgd(1, 2, Promise::kTrajectory, make_adamw({})), contains("trajectory"));
  CHECK_THAT(local_sgd(1, 2, Promise::kExact, make_sgd({})), contains("exact gradients"));
}
