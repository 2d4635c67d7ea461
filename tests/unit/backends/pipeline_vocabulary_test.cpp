// SPDX-License-Identifier: MIT
// Building, errors, visits and memory of stages that share the vocabulary; numbers are tested in
// tests/parity.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "lib/testing/player.h"
#include "tessera/backends/pipeline/pipeline.h"
#include "tessera/core/error.h"
#include "tessera/models/language_model.h"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"
#include "tests/unit/backends/pipelines.h"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::contains;

namespace {

constexpr int64_t kVocabulary = 67, kHidden = 32;

ModelSpec bloom(bool tied = true, int64_t vocabulary = kVocabulary) {
  auto config =
      sized("bloom", {.vocabulary = vocabulary, .hidden = kHidden, .heads = 4, .layers = 4});
  config.tied_head = tied;
  return causal(config);
}

ParallelConfig shared_config(const std::string& strategy = "ddp",
                             const std::string& schedule = "1f1b") {
  ParallelConfig config{.strategy = strategy};
  config.pipeline = {.schedule = schedule, .shared_vocabulary = true};
  return config;
}

MicroBatch batch(int64_t rows, int64_t sequence, uint64_t seed) {
  return toy_micro_batch({.vocabulary = kVocabulary}, rows, sequence, seed);
}

}  // namespace

TEST_CASE("what cannot share its vocabulary is refused with the reason, the same on every rank") {
  CHECK_THAT(refusal({.pipeline = 2}, shared_config(), toy_language_model()),
             contains("no embedding and head that all pipeline stages can share"));
  CHECK_THAT(refusal({.pipeline = 5}, shared_config(), bloom()),
             contains("4 blocks between its ends, too few for 5 pipeline stages"));
  CHECK_THAT(refusal({}, shared_config("single"), bloom()),
             contains("pipeline axis of more than one rank"));
  CHECK_THAT(refusal({.pipeline = 2, .tensor = 2}, shared_config(), bloom()),
             contains("tensor axis of 2 ranks"));
  ParallelConfig interleaved = shared_config("ddp", "interleaved");
  interleaved.pipeline.chunks = 2;
  CHECK_THAT(refusal({.pipeline = 2}, interleaved, bloom()), contains("interleaved has no order"));
  ModelSpec model = bloom();
  model.tied[0].alias_block = "h.1";
  CHECK_THAT(refusal({.pipeline = 2}, shared_config(), model),
             contains("all stages share one block, but not the other"));
  model = toy_language_model();
  model.shareable_ends = true;  // a claim that its blocks do not fulfil
  CHECK_THAT(refusal({.pipeline = 2}, shared_config(), model),
             contains("embedding.weight is neither cut nor marked"));
  CHECK_THAT(refusal({.pipeline = 4}, shared_config(), bloom(true, /*vocabulary=*/5)),
             contains("leave nothing for the last of 4"));
}

TEST_CASE("every stage builds the ends and its even share of the layers, and holds its rows") {
  for (bool tied : {true, false}) {
    BuildLog built;
    const ModelSpec model = bloom(tied);
    test::run_ranks(4, [&](Communicator& comm) {
      const Player player(comm,
                          {built.watched(model, comm.rank()), {.pipeline = 4}, shared_config()});
      const int64_t layer = 12 * kHidden * kHidden + 13 * kHidden;
      const int64_t rows = (kVocabulary + 3) / 4 * (tied ? 1 : 2);
      const double expected = 4.0 * static_cast<double>(rows * kHidden + 4 * kHidden + layer);
      const auto held = static_cast<double>(player.strategy().memory().parameter_bytes);
      test::require(held >= expected && held < 1.05 * expected, "holds ", held, " bytes of ",
                    expected);
    });
    for (int rank = 0; rank < 4; ++rank) {
      CHECK(built.of(rank) == std::multiset<std::string>{"embedding", concat("h.", rank), "head"});
    }
  }
}

TEST_CASE("every rank visits whole tables once, in the model's order, whatever the units") {
  for (bool tied : {true, false}) {
    const ModelSpec model = bloom(tied);
    std::vector<std::string> order;
    std::map<std::string, at::Tensor> values;
    int64_t count = 0;
    play({model, {}, {.strategy = "fsdp"}}, [&](Player& player) {
      Strategy& strategy = player.strategy();
      count = strategy.parameter_count();
      strategy.visit_parameters([&](const VisitedParameter& p) {
        order.push_back(p.block + "." + p.name);
        values[order.back()] = p.value.clone();
      });
    });
    for (int64_t unit_numel : {int64_t{0}, int64_t{1} << 30}) {
      ParallelConfig config = shared_config("fsdp");
      config.unit_numel = unit_numel;
      play({model, {.pipeline = 3, .data = 2}, config}, [&](Player& player) {
        Strategy& strategy = player.strategy();
        test::require(strategy.parameter_count() == count, "parameter_count is ",
                      strategy.parameter_count(), ", expected ", count);
        std::vector<std::string> seen, expected = order;
        strategy.visit_parameters([&](const VisitedParameter& p) {
          seen.push_back(p.block + "." + p.name);
          test::require_bit_equal(p.value, values.at(seen.back()), seen.back());
        });
        if (unit_numel > 0) {  // a unit's parameters with weight decay come first
          std::sort(seen.begin(), seen.end());
          std::sort(expected.begin(), expected.end());
        }
        test::require(seen == expected, "the order of visits differs");
      });
    }
  }
}

TEST_CASE("a shared vocabulary: micro-batches of different sizes, evaluation between training") {
  const ModelSpec model = bloom();
  struct StepResults {
    std::vector<double> numbers;
    Named gradients;
  };
  auto work = [&](Strategy& strategy) {
    StepResults result;
    for (uint64_t step = 0; step < 3; ++step) {
      std::vector<MicroBatch> batches;
      for (int64_t rows : {3, 1, 5, 2, 1}) {
        const auto length = static_cast<int64_t>(2 + (step + 2 * batches.size()) % 5);
        batches.push_back(batch(rows, length, 40 + 10 * step + batches.size()));
      }
      result.numbers.push_back(strategy.evaluate(batches).loss.item<double>());
      result.numbers.push_back(strategy.forward_backward(batches).loss.item<double>());
      result.numbers.push_back(strategy.grad_norm_squared().item<double>());
      strategy.optimizer_step(1e-3);
      const auto one = std::span(batches).subspan(step, 1);
      result.numbers.push_back(strategy.evaluate(one).loss.item<double>());
    }
    result.gradients = gradients_of(strategy);
    return result;
  };
  StepResults expected;
  play({model}, [&](Player& player) { expected = work(player.strategy()); });
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    for (const std::string strategy : {"ddp", "zero3"}) {
      for (int stages : {2, 4}) {
        play({model, {.pipeline = stages}, shared_config(strategy, schedule)}, [&](Player& player) {
          const StepResults result = work(player.strategy());
          for (size_t i = 0; i < expected.numbers.size(); ++i) {
            const double error = std::abs(result.numbers[i] - expected.numbers[i]);
            test::require(error < 1e-4 * expected.numbers[i], "number ", i, " is ",
                          result.numbers[i], ", expected ", expected.numbers[i]);
          }
          for (const auto& [name, gradient] : expected.gradients) {
            test::require(result.gradients.at(name).allclose(gradient, 1e-3, 1e-6), name);
          }
        });
      }
    }
  }
}

TEST_CASE("the waits of passes of all stages are measured only when asked for") {
  check_measured_waits({bloom(), {.pipeline = 2}, shared_config()}, batch(2, 5, 1));
}
