// SPDX-License-Identifier: MIT
// Building, errors and visits of a pipeline; numbers are tested in tests/parity.
#include <ATen/ATen.h>

#include <map>
#include <mutex>
#include <set>

#include "lib/testing/player.h"
#include "tessera/backends/data_parallel/ddp.h"
#include "tessera/backends/pipeline/pipeline.h"
#include "tessera/backends/zero/zero.h"
#include "tessera/core/error.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"
#include "tests/unit/backends/pipelines.h"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::contains;

namespace {

// A block without parameters.
class FunctionBlock : public Block {
 public:
  using Function = std::function<at::Tensor(const at::Tensor&, const MicroBatch&)>;
  explicit FunctionBlock(Function function) : function_(std::move(function)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch,
                     const BlockContext&) override {
    return function_(hidden, micro_batch);
  }
  std::vector<Parameter> parameters() override { return {}; }

 private:
  Function function_;
};

BlockBuilder function_block(const std::string& name, FunctionBlock::Function function) {
  return {name, [=](const BuildContext&) { return std::make_unique<FunctionBlock>(function); }};
}

}  // namespace

TEST_CASE("what a pipeline cannot do is refused with the reason, the same on every rank") {
  const ModelSpec model = toy_language_model();  // 5 blocks
  CHECK_THAT(refusal({.pipeline = 6}, pipeline_config("1f1b"), model),
             contains("5 blocks, too few for 6 pipeline stages"));
  CHECK_THAT(refusal({.pipeline = 2}, pipeline_config("interleaved", 3), model),
             contains("3 chunks"));
  CHECK_THAT(refusal({.pipeline = 2}, pipeline_config("pipedream"), model),
             contains("\"pipedream\" is unknown"));
  CHECK_THAT(refusal({.pipeline = 2}, pipeline_config("gpipe", 2), model),
             contains("one chunk a stage"));
  CHECK_THAT(refusal({.pipeline = 1}, pipeline_config("interleaved", 2), model),
             contains("pipeline axis of more than one rank"));
  ParallelConfig measured = pipeline_config("1f1b");
  measured.pipeline.block_costs = {1, 2};
  CHECK_THAT(refusal({.pipeline = 2}, measured, model),
             contains("2 numbers") && contains("5 blocks"));
  ModelSpec wrong = model;
  wrong.tied[0].owner_block = "embeding";
  CHECK_THAT(refusal({.pipeline = 2}, pipeline_config("1f1b"), wrong),
             contains("embeding.weight does not exist"));
  wrong = model;
  wrong.has_loss = false;
  CHECK_THAT(refusal({.pipeline = 2}, pipeline_config("1f1b"), wrong), contains("has no loss"));
  wrong = model;
  wrong.blocks[3].name = wrong.blocks[1].name;
  CHECK_THAT(refusal({.pipeline = 2}, pipeline_config("1f1b"), wrong),
             contains("two blocks named"));
}

TEST_CASE("a rank builds its own blocks, an owner of aliases elsewhere once more for its values") {
  for (bool tied : {true, false}) {
    BuildLog built;
    const ModelSpec model = toy_language_model({.tied = tied});
    test::run_ranks(3, [&](Communicator& comm) {
      const Player player(
          comm, {built.watched(model, comm.rank()), {.pipeline = 3}, pipeline_config("1f1b")});
      test::require(player.strategy().name() == "ddp+1f1b", player.strategy().name());
    });
    std::multiset<std::string> first{"embedding"};
    if (tied) first.insert("embedding");
    CHECK(built.of(0) == first);
    CHECK(built.of(1) == std::multiset<std::string>{"layer.0", "layer.1"});
    CHECK(built.of(2) == std::multiset<std::string>{"layer.2", "head"});
  }
}

TEST_CASE("every rank visits all parameters once, in the model's order, tied ones at their owner") {
  const ModelSpec model = toy_language_model({.layers = 6});
  std::vector<std::string> order;
  std::map<std::string, at::Tensor> values;
  int64_t count = 0;
  play({model}, [&](Player& player) {
    Strategy& strategy = player.strategy();
    count = strategy.parameter_count();
    strategy.visit_parameters([&](const VisitedParameter& p) {
      order.push_back(p.block + "." + p.name);
      values[order.back()] = p.value.clone();
    });
  });
  for (const auto& [stages, chunks] : {std::pair(2, 1), std::pair(3, 2), std::pair(2, 4)}) {
    play({model,
          {.pipeline = stages},
          pipeline_config(chunks == 1 ? "gpipe" : "interleaved", chunks)},
         [&, chunks = chunks](Player& player) {
           Strategy& strategy = player.strategy();
           test::require(strategy.parameter_count() == count, "parameter_count is ",
                         strategy.parameter_count(), ", expected ", count);
           std::vector<std::string> seen;
           strategy.visit_parameters([&](const VisitedParameter& p) {
             seen.push_back(p.block + "." + p.name);
             test::require_bit_equal(p.value, values.at(seen.back()), seen.back());
           });
           test::require(seen == order, "the order of visits differs");
         });
  }
}

TEST_CASE("micro-batches of different sizes, training and evaluation in turn") {
  const ToyConfig config;
  const ModelSpec model = toy_language_model(config);
  struct StepResults {
    std::vector<double> losses, counters;
    Named gradients;
  };
  auto work = [&](Strategy& strategy, bool cut) {
    StepResults result;
    auto add = [&](const StepResult& one) {
      result.losses.push_back(one.loss.item<double>());
      result.losses.push_back(one.target_count.item<double>());
      result.counters.push_back(one.counters[0].item<double>());
    };
    for (uint64_t step = 0; step < 3; ++step) {
      const MicroBatch whole = toy_micro_batch(config, 11, 5, 40 + step);
      std::vector<MicroBatch> batches;
      int64_t first = 0;
      for (int64_t rows : cut ? std::vector<int64_t>{3, 1, 5, 2} : std::vector<int64_t>{11}) {
        batches.push_back(rows_of(whole, first, rows));
        first += rows;
      }
      add(strategy.evaluate(batches));
      add(strategy.forward_backward(batches));
      strategy.optimizer_step(1e-2);
      if (step == 1) add(strategy.evaluate(std::span(batches).first(1)));
    }
    result.gradients = gradients_of(strategy);
    return result;
  };
  StepResults expected;
  test::run_ranks(1, [&](Communicator& comm) {
    expected = work(Player(comm, {model}).strategy(), /*cut=*/true);
    const StepResults uncut = work(Player(comm, {model}).strategy(), /*cut=*/false);
    test::require(std::abs(uncut.losses.back() - expected.losses.back()) < 1e-6, "the cut matters");
  });
  for (const auto& [schedule, chunks] :
       {std::pair("gpipe", 1), std::pair("1f1b", 1), std::pair("interleaved", 2)}) {
    for (const std::string sharding : {"ddp", "zero3"}) {
      ParallelConfig parallel = pipeline_config(schedule, chunks);
      parallel.strategy = sharding;
      play({model, {.pipeline = 2}, parallel}, [&](Player& player) {
        const StepResults result = work(player.strategy(), /*cut=*/true);
        test::require(result.counters == expected.counters, "counters differ");
        for (size_t i = 0; i < expected.losses.size(); ++i) {
          test::require(std::abs(result.losses[i] - expected.losses[i]) < 1e-5, "result ", i,
                        " is ", result.losses[i], ", expected ", expected.losses[i]);
        }
        for (const auto& [name, gradient] : expected.gradients) {
          test::require(result.gradients.at(name).allclose(gradient, 1e-4, 1e-6), name);
        }
      });
    }
  }
}

TEST_CASE("activations of any dtype cross a boundary, and only floating ones have gradients") {
  ModelSpec model = toy_language_model({.layers = 1, .tied = false});
  const BlockBuilder embedding = model.blocks.front();
  model.blocks.front().build = [embedding](const BuildContext& context) {
    // The embedding reads ids forwarded by another stage.
    auto built = std::shared_ptr<Block>(embedding.build(context));
    struct FromHidden : Block {
      std::shared_ptr<Block> block;
      at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch,
                         const BlockContext& context) override {
        MicroBatch changed = micro_batch;
        changed.input_ids = hidden;
        return block->forward({}, changed, context);
      }
      std::vector<Parameter> parameters() override { return block->parameters(); }
    };
    auto block = std::make_unique<FromHidden>();
    block->block = std::move(built);
    return block;
  };
  model.blocks.insert(model.blocks.begin(), function_block("ids", [](const auto&, const auto& m) {
                        return m.input_ids.flip(0);
                      }));
  double expected = 0;
  auto loss_after_steps = [&](Strategy& strategy) {
    const MicroBatch batch = toy_micro_batch({}, 4, 5, 9);
    const std::vector<MicroBatch> batches{rows_of(batch, 0, 2), rows_of(batch, 2, 2)};
    for (int step = 0; step < 3; ++step) {
      strategy.forward_backward(batches);
      strategy.optimizer_step(1e-2);
    }
    return strategy.evaluate(batches).loss.item<double>();
  };
  play({model}, [&](Player& player) { expected = loss_after_steps(player.strategy()); });
  play({model, {.pipeline = 4}, pipeline_config("1f1b")}, [&](Player& player) {
    const double loss = loss_after_steps(player.strategy());
    test::require(std::abs(loss - expected) < 1e-5, "loss ", loss, ", expected ", expected);
  });
}

TEST_CASE("a shape that does not follow from the input's is refused") {
  ModelSpec model = toy_language_model({.layers = 0, .tied = false});
  auto narrowing = [calls = std::make_shared<int>(0)](const at::Tensor& hidden, const auto&) {
    return hidden.narrow(1, 0, hidden.size(1) - (*calls)++);
  };
  model.blocks.insert(model.blocks.begin() + 1, function_block("narrow", narrowing));
  const std::vector<MicroBatch> batches(2, toy_micro_batch({}, 2, 5, 1));
  CHECK_THROWS_WITH(play({model, {.pipeline = 3}, pipeline_config("gpipe")},
                         [&](Player& player) { player.strategy().evaluate(batches); }),
                    contains("[2, 4, 12] goes to part 2") && contains("[2, 5, 12] before"));
}

TEST_CASE("a pipeline by the name of its schedule runs that") {
  test::run_ranks(2, [&](Communicator& comm) {
    DeviceMesh mesh(comm, {.pipeline = 2});
    const ParallelConfig config{.strategy = "zero1"};
    ShardingSetup setup(mesh.axis(Axis::kData));
    setup.mesh = &mesh;
    const auto strategy = Pipeline::gpipe(config, std::make_unique<ZeroStage1>(config, setup),
                                          mesh.axis(Axis::kPipeline));
    test::require(strategy->name() == "zero1+gpipe", strategy->name());
    strategy->attach(toy_language_model({.layers = 4}), {.seed = 3}, make_adamw({}));
    strategy->forward_backward(std::vector(3, toy_micro_batch({}, 2, 5, 1)));
    strategy->optimizer_step(1e-2);
  });
}

TEST_CASE("one rank may have all the chunks") {
  const ModelSpec model = toy_language_model({.layers = 4});
  const std::vector<MicroBatch> batches(3, toy_micro_batch({}, 2, 5, 1));
  play({model}, [&](Player& player) {
    Strategy& strategy = player.strategy();
    const ParallelConfig config = pipeline_config("interleaved", 3);
    Pipeline chunked(config, std::make_unique<Ddp>(config, player.mesh().axis(Axis::kData)),
                     player.mesh().axis(Axis::kPipeline));
    chunked.attach(model, {.seed = 3}, make_adamw({}));
    for (int step = 0; step < 3; ++step) {
      const double a = strategy.forward_backward(batches).loss.item<double>();
      const double b = chunked.forward_backward(batches).loss.item<double>();
      test::require(std::abs(a - b) < 1e-6, "loss ", b, ", expected ", a);
      strategy.optimizer_step(1e-2);
      chunked.optimizer_step(1e-2);
    }
  });
}
