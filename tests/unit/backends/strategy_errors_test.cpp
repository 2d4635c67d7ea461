// SPDX-License-Identifier: MIT
// Errors of make_strategy() and attach(), raised on every rank before any collective.
#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>

#include "backends/check_config.h"
#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/model/adapters.h"
#include "tessera/optim/adamw.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

std::string refusal(int ranks, const ParallelConfig& config, const ModelSpec& model) {
  return error_of(ErrorCode::kInvalidArgument, [&] {
    play({model, {.data = ranks}, config}, [&](Player& player) {});
  });
}

template <typename Mesh>
concept MakesStrategy = requires(const ParallelConfig& config, Mesh&& mesh) {
  make_strategy(config, std::forward<Mesh>(mesh));
};
static_assert(MakesStrategy<const DeviceMesh&> && MakesStrategy<DeviceMesh&>);
static_assert(!MakesStrategy<DeviceMesh> && !MakesStrategy<const DeviceMesh>,
              "a temporary mesh would be gone before the strategy");

}  // namespace

TEST_CASE("unknown strategies and impossible sizes are refused by name") {
  const ModelSpec model = toy_language_model();
  using tessera::test::contains;
  CHECK_THAT(refusal(1, {.strategy = "zero4"}, model),
             contains("\"zero4\" is unknown") && contains("zero3"));
  CHECK_THAT(refusal(2, {.strategy = "single"}, model), contains("one rank") && contains("ddp"));
  CHECK_THAT(refusal(2, {.strategy = "zero3", .prefetch_blocks = -1}, model),
             contains("prefetch_blocks"));
  CHECK_THAT(refusal(2, {.strategy = "ddp", .bucket_bytes = 0}, model), contains("bucket_bytes"));
  CHECK_THAT(refusal(4, {.strategy = "fsdp", .shard_ranks = 3}, model),
             contains("shard_ranks is 3") && contains("4 ranks"));
  CHECK_THAT(refusal(2, {.strategy = "zero2", .shard_ranks = 2}, model),
             contains("belongs to fsdp") && contains("zero2"));
  CHECK_THAT(refusal(2, {.strategy = "zero3", .reshard_after_forward = false}, model),
             contains("belongs to fsdp"));
  CHECK_THAT(refusal(2, {.strategy = "zero3", .sequence_parallel = true}, model),
             contains("tensor axis"));
  CHECK_THAT(refusal(2, {.strategy = "ddp", .offload = {.what = Offload::kOptimizer}}, model),
             contains("strategy ddp with an offloaded optimizer") && contains("zero1"));
  CHECK_THAT(
      refusal(2, {.strategy = "zero2", .offload = {.what = Offload::kOptimizerAndParameters}},
              model),
      contains("zero3 or fsdp"));
  ParallelConfig doubles{.strategy = "ddp"};
  doubles.precision.parameter = at::kDouble;
  CHECK_THAT(refusal(2, doubles, model), contains("float32, bfloat16 or float16"));
}

TEST_CASE("settings that nothing of a layout reads are named with what they belong to") {
  const auto names = [](const ParallelConfig& config, const MeshExtents& mesh) {
    std::vector<std::string> all;
    for (const IdleSetting& idle : idle_settings(config, mesh)) all.push_back(idle.name);
    return all;
  };
  using Names = std::vector<std::string>;
  const ParallelConfig all{
      .reduce_at_boundary = true,
      .persistence_threshold = 5,
      .prefetch_blocks = 2,
      .gradient_checkpointing = true,
      .save_norm_outputs = true,
      .offload = {.step = OffloadStep::kHost, .pin_memory = false, .threads = 3},
      .pipeline = {.schedule = "gpipe", .balance = "parameters"}};
  const auto with = [&](const char* strategy) {
    ParallelConfig config = all;
    config.strategy = strategy;
    return config;
  };
  const Names rest{"save_norm_outputs", "offload.step", "offload.pin_memory", "offload.threads"};
  const auto and_rest = [&](Names first) {
    first.insert(first.end(), rest.begin(), rest.end());
    return first;
  };
  const MeshExtents stages{.pipeline = 2, .data = 2};
  CHECK(names(with("zero3"), stages) == and_rest({"reduce_at_boundary"}));
  CHECK(names(with("fsdp"), stages) == and_rest({"persistence_threshold"}));
  CHECK(names(with("zero2"), stages) == and_rest({"persistence_threshold", "prefetch_blocks"}));
  for (const char* strategy : {"ddp", "zero1"}) {
    CHECK(names(with(strategy), stages) ==
          and_rest({"reduce_at_boundary", "persistence_threshold", "prefetch_blocks"}));
  }
  ParallelConfig offloaded = with("zero3");
  offloaded.reduce_at_boundary = offloaded.save_norm_outputs = false;
  offloaded.offload.what = Offload::kOptimizer;
  CHECK(names(offloaded, stages).empty());
  CHECK(names(offloaded, {.data = 2}) == Names{"pipeline.schedule", "pipeline.balance"});
  for (const std::string& strategy : strategy_names()) {
    CHECK(names({.strategy = strategy}, {}).empty());
  }
}

TEST_CASE("packed rows are refused by name for blocks that do not keep to them") {
  using tessera::test::contains;
  MicroBatch batch = make_micro_batch(at::ones({1, 6}, at::kLong), at::ones({1, 6}, at::kLong));
  const auto outcome_of = [&](const ModelSpec& model, bool training) {
    return error_of(ErrorCode::kInvalidArgument, [&] {
      play({model, {}, {.strategy = "single"}}, [&](Player& player) {
        Strategy& strategy = player.strategy();
        const std::vector<MicroBatch> step{batch};
        training ? strategy.forward_backward(step) : strategy.evaluate(step);
      });
    });
  };
  const auto model_with = [](bool supports_packed_rows) {
    return from_module([] { return torch::nn::Embedding(3, 1); },
                       [](const at::Tensor& output, const MicroBatch&) { return output.sum(); },
                       {.supports_packed_rows = supports_packed_rows});
  };
  CHECK(outcome_of(model_with(false), true) == "no error");
  batch.packed = make_packed_rows({2, 4}, 6);
  for (const bool training : {true, false}) {
    CHECK_THAT(
        outcome_of(toy_language_model(), training),
        contains("block embedding was given packed rows") && contains("supports_packed_rows"));
    CHECK_THAT(outcome_of(model_with(false), training), contains("was given packed rows"));
    CHECK(outcome_of(model_with(true), training) == "no error");
  }
}

namespace {

// A block that says that it keeps to packed rows.
class Keeping final : public Block {
 public:
  explicit Keeping(std::unique_ptr<Block> block) : block_(std::move(block)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch,
                     const BlockContext& context) override {
    return block_->forward(hidden, micro_batch, context);
  }
  bool supports_packed_rows() const override { return true; }
  std::vector<Parameter> parameters() override { return block_->parameters(); }

 private:
  std::unique_ptr<Block> block_;
};

}  // namespace

TEST_CASE("packed rows that one pipeline stage refuses are refused by all ranks with one message") {
  using tessera::test::contains;
  ModelSpec model = toy_language_model();
  const std::string last = model.blocks.back().name;
  for (size_t i = 0; i + 1 < model.block_count(); ++i) {
    model.blocks[i].build = [inner = model.blocks[i].build](const BuildContext& context) {
      return std::make_unique<Keeping>(inner(context));
    };
  }
  MicroBatch batch = make_micro_batch(at::ones({1, 6}, at::kLong), at::ones({1, 6}, at::kLong));
  batch.packed = make_packed_rows({2, 4}, 6);
  for (const bool training : {true, false}) {
    std::vector<std::string> said(4);
    play({model, {.pipeline = 2, .data = 2}, {.strategy = "ddp"}}, [&](Player& player) {
      const std::vector<MicroBatch> step{batch};
      said[static_cast<size_t>(player.rank())] = error_of(ErrorCode::kInvalidArgument, [&] {
        training ? player.strategy().forward_backward(step) : player.strategy().evaluate(step);
      });
    });
    CHECK(said == std::vector<std::string>(4, said[0]));
    CHECK_THAT(said[0], contains("block " + last + " was given packed rows"));
  }
}

TEST_CASE("models with wrong ties or names are refused") {
  using tessera::test::contains;
  ModelSpec model = toy_language_model();
  model.tied[0].owner_parameter = "wieght";
  CHECK_THAT(refusal(2, {.strategy = "zero1"}, model), contains("embedding.wieght"));
  model = toy_language_model();
  model.blocks[2].name = model.blocks[1].name;
  CHECK_THAT(refusal(2, {.strategy = "zero1"}, model), contains("two blocks named"));
}
