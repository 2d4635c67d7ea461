// What stages that share the vocabulary build, refuse, show and hold; numbers are in tests/parity.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "tessera/backends/pipeline/pipeline.h"
#include "tessera/core/error.h"
#include "tessera/models/bloom.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"
#include "tests/unit/backends/pipelines.h"

using namespace tessera;
using namespace tessera::testing;
using Catch::Matchers::Contains;

namespace {

constexpr int64_t kVocabulary = 67, kHidden = 32;

ModelSpec bloom(bool tied = true, int64_t vocabulary = kVocabulary) {
  BloomConfig config;
  config.vocabulary = vocabulary;
  config.hidden = kHidden;
  config.heads = 4;
  config.layers = 4;
  config.tied_head = tied;
  return make_bloom_causal(config);
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
             Contains("no embedding and head that all pipeline stages can share"));
  CHECK_THAT(refusal({.pipeline = 5}, shared_config(), bloom()),
             Contains("4 blocks between its ends, too few for 5 pipeline stages"));
  CHECK_THAT(refusal({}, shared_config("single"), bloom()),
             Contains("pipeline axis of more than one rank"));
  CHECK_THAT(refusal({.pipeline = 2, .tensor = 2}, shared_config(), bloom()),
             Contains("tensor axis of 2 ranks"));
  ParallelConfig interleaved = shared_config("ddp", "interleaved");
  interleaved.pipeline.chunks = 2;
  CHECK_THAT(refusal({.pipeline = 2}, interleaved, bloom()), Contains("interleaved has no order"));
  ModelSpec model = bloom();
  model.tied[0].alias_block = "h.1";
  CHECK_THAT(refusal({.pipeline = 2}, shared_config(), model),
             Contains("all stages share one block, but not the other"));
  model = toy_language_model();
  model.shareable_ends = true;  // a claim that its blocks do not keep
  CHECK_THAT(refusal({.pipeline = 2}, shared_config(), model),
             Contains("embedding.weight is neither cut nor marked"));
  CHECK_THAT(refusal({.pipeline = 4}, shared_config(), bloom(true, /*vocabulary=*/5)),
             Contains("leave nothing for the last of 4"));
}

TEST_CASE("every stage builds the ends and its even share of the layers, and holds its rows") {
  for (bool tied : {true, false}) {
    std::mutex mutex;
    std::map<int, std::multiset<std::string>> built;
    test::run_ranks(4, [&](Communicator& comm) {
      ModelSpec model = bloom(tied);
      for (auto& block : model.blocks) {
        block.build = [&, build = block.build, name = block.name](const BuildContext& context) {
          const std::lock_guard lock(mutex);
          built[comm.rank()].insert(name);
          return build(context);
        };
      }
      DeviceMesh mesh(comm, {.pipeline = 4});
      auto strategy = attach(mesh, shared_config(), model);
      const int64_t layer = 12 * kHidden * kHidden + 13 * kHidden;
      const int64_t rows = (kVocabulary + 3) / 4 * (tied ? 1 : 2);
      const double expected = 4.0 * static_cast<double>(rows * kHidden + 4 * kHidden + layer);
      const auto held = static_cast<double>(strategy->memory().parameter_bytes);
      test::require(held >= expected && held < 1.05 * expected, "holds ", held, " bytes of ",
                    expected);
    });
    for (int rank = 0; rank < 4; ++rank) {
      CHECK(built[rank] == std::multiset<std::string>{"embedding", concat("h.", rank), "head"});
    }
  }
}

TEST_CASE("every rank visits whole tables once, in the model's order, whatever the units") {
  for (bool tied : {true, false}) {
    const ModelSpec model = bloom(tied);
    std::vector<std::string> order;
    std::map<std::string, at::Tensor> values;
    int64_t count = 0;
    test::run_ranks(1, [&](Communicator& comm) {
      DeviceMesh mesh(comm, {});
      auto strategy = attach(mesh, {.strategy = "fsdp"}, model);
      count = strategy->parameter_count();
      strategy->visit_parameters([&](const VisitedParameter& p) {
        order.push_back(p.block + "." + p.name);
        values[order.back()] = p.value.clone();
      });
    });
    for (int64_t unit_numel : {int64_t{0}, int64_t{1} << 30}) {
      ParallelConfig config = shared_config("fsdp");
      config.unit_numel = unit_numel;
      test::run_ranks(6, [&](Communicator& comm) {
        DeviceMesh mesh(comm, {.pipeline = 3, .data = 2});
        auto strategy = attach(mesh, config, model);
        test::require(strategy->parameter_count() == count, "parameter_count is ",
                      strategy->parameter_count(), ", expected ", count);
        std::vector<std::string> seen, expected = order;
        strategy->visit_parameters([&](const VisitedParameter& p) {
          seen.push_back(p.block + "." + p.name);
          test::require_bit_equal(p.value, values.at(seen.back()), seen.back());
        });
        if (unit_numel > 0) {  // decaying parameters of a unit come first
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
  struct Outcome {
    std::vector<double> numbers;
    std::map<std::string, at::Tensor> gradients;
  };
  auto work = [&](Strategy& strategy) {
    Outcome outcome;
    for (uint64_t step = 0; step < 3; ++step) {
      std::vector<MicroBatch> batches;
      for (int64_t rows : {3, 1, 5, 2, 1}) {
        const auto length = static_cast<int64_t>(2 + (step + 2 * batches.size()) % 5);
        batches.push_back(batch(rows, length, 40 + 10 * step + batches.size()));
      }
      outcome.numbers.push_back(strategy.evaluate(batches).loss.item<double>());
      outcome.numbers.push_back(strategy.forward_backward(batches).loss.item<double>());
      outcome.numbers.push_back(strategy.grad_norm_squared().item<double>());
      strategy.optimizer_step(1e-3);
      const auto one = std::span(batches).subspan(step, 1);
      outcome.numbers.push_back(strategy.evaluate(one).loss.item<double>());
    }
    strategy.visit_gradients([&](const VisitedParameter& p) {
      outcome.gradients[p.block + "." + p.name] = p.value.clone();
    });
    return outcome;
  };
  Outcome expected;
  test::run_ranks(1, [&](Communicator& comm) {
    DeviceMesh mesh(comm, {});
    expected = work(*attach(mesh, {}, model));
  });
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    for (const std::string strategy : {"ddp", "zero3"}) {
      for (int stages : {2, 4}) {
        test::run_ranks(stages, [&](Communicator& comm) {
          DeviceMesh mesh(comm, {.pipeline = comm.size()});
          const Outcome outcome = work(*attach(mesh, shared_config(strategy, schedule), model));
          for (size_t i = 0; i < expected.numbers.size(); ++i) {
            const double error = std::abs(outcome.numbers[i] - expected.numbers[i]);
            test::require(error < 1e-4 * expected.numbers[i], "number ", i, " is ",
                          outcome.numbers[i], ", expected ", expected.numbers[i]);
          }
          for (const auto& [name, gradient] : expected.gradients) {
            test::require(outcome.gradients.at(name).allclose(gradient, 1e-3, 1e-6), name);
          }
        });
      }
    }
  }
}

TEST_CASE("the waits of passes of all stages are measured only when asked for") {
  test::run_ranks(2, [&](Communicator& comm) {
    DeviceMesh mesh(comm, {.pipeline = 2});
    auto strategy = attach(mesh, shared_config(), bloom());
    auto& pipeline = dynamic_cast<Pipeline&>(*strategy);
    const std::vector<MicroBatch> batches(3, batch(2, 5, 1));
    strategy->forward_backward(batches);
    strategy->optimizer_step(1e-3);
    test::require(pipeline.times().total_s == 0, "nothing was asked for");
    pipeline.measure_times(true);
    strategy->forward_backward(batches);
    const PipelineTimes times = pipeline.times();
    test::require(times.total_s > 0 && times.waited_s > 0 && times.waited_s < times.total_s,
                  "waited ", times.waited_s, " s of ", times.total_s);
  });
}
