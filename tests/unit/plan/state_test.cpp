// SPDX-License-Identifier: MIT
// Memory and traffic of strategies by dry runs, against published figures and sums by hand.
#include <ATen/ATen.h>

#include "lib/plan/rank_planner.h"
#include "tessera/core/error.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/elementwise.h"
#include "tessera/optim/sgd.h"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

class Weights : public Block {
 public:
  Weights(const std::vector<int64_t>& sizes, at::Device device, bool is_last) : is_last_(is_last) {
    for (int64_t numel : sizes) {
      const std::string name = concat("p", parameters_.size());
      parameters_.push_back({name, at::empty({numel}, device).set_requires_grad(true)});
    }
  }
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext&) override {
    if (!hidden.defined()) {
      return at::zeros({is_last_ ? 1 : 100}, batch.input_ids.options().dtype(at::kFloat));
    }
    return is_last_ ? hidden.sum().reshape({1}) : hidden * 1;
  }
  std::vector<Parameter> parameters() override { return parameters_; }

 private:
  const bool is_last_;
  std::vector<Parameter> parameters_;
};

// Blocks with parameters of these sizes that pass on 100 numbers; the last is the loss.
ModelSpec model_of(const std::vector<std::vector<int64_t>>& blocks) {
  ModelSpec model;
  for (const auto& sizes : blocks) {
    const bool is_last = model.blocks.size() + 1 == blocks.size();
    model.blocks.push_back(
        {concat("b", model.blocks.size()),
         [sizes, is_last](const BuildContext& context) -> std::unique_ptr<Block> {
           return std::make_unique<Weights>(sizes, context.device, is_last);
         }});
  }
  return model;
}

// Two states with fp32 masters that are not split.
OptimizerFactory two_states() {
  return make_elementwise("two states", {"first", "second"},
                          [](const ElementwiseStep& step, std::vector<at::Tensor>&) {
                            return step.parameter - step.learning_rate * step.gradient;
                          });
}

StateMemory state_of(const PlannedLayout& layout, int stage = 0) {
  RankPlanner rank(layout, {.pipeline = stage});
  rank.step({.rows = 1, .length = 1});
  return rank.state();
}

}  // namespace

TEST_CASE("strategies hold the published figures") {
  // Rajbhandari et al. 2020, figure 1: 7.5e9 parameters, 16-bit training, 64 ranks: 120, 31.4,
  // 16.6, 1.9 GB.
  PlannedLayout layout{.parallel = {},
                       .mesh = {.data = 64},
                       .model = model_of({{7'500'000'000}}),
                       .optimizer = two_states()};
  layout.parallel.precision.parameter = at::kBFloat16;
  auto gigabytes = [&](const char* strategy) {
    layout.parallel.strategy = strategy;
    const StateMemory cost = state_of(layout);
    return (cost.parameter_bytes + cost.gradient_bytes + cost.optimizer_bytes) / 1e9;
  };
  CHECK(gigabytes("ddp") == Approx(120));
  CHECK(gigabytes("zero1") == Approx(31.4).epsilon(1e-2));
  CHECK(gigabytes("zero2") == Approx(16.6).epsilon(1e-2));
  CHECK(gigabytes("zero3") == Approx(1.9).epsilon(2e-2));
  CHECK(gigabytes("fsdp") == Approx(1.9).epsilon(2e-2));
  // Half of a split master's bytes are the parameters.
  layout.optimizer = make_adamw({});
  CHECK(gigabytes("ddp") == Approx(105));
  CHECK(gigabytes("fsdp") == Approx(14 * 7.5 / 64).epsilon(2e-2));
  layout.parallel.precision.parameter = at::kHalf;
  CHECK(gigabytes("ddp") == Approx(120));
}

TEST_CASE("communication grows with the micro-batches where gradients are sharded") {
  PlannedLayout layout{.parallel = {.strategy = "ddp"},
                       .mesh = {.data = 4},
                       .accumulation = 3,
                       .model = model_of({{1'024'000, 1024}})};
  auto sent = [&](const char* strategy) {
    layout.parallel.strategy = strategy;
    return state_of(layout).comm_bytes_per_step;
  };
  const double parameters = 1'025'024, ring = 0.75;
  CHECK(sent("ddp") == Approx(8 * parameters * ring));
  CHECK(sent("zero1") == Approx(8 * parameters * ring));
  CHECK(sent("zero2") == Approx((3 * 4 + 4) * parameters * ring));
  // One block: gathered once per step.
  CHECK(sent("zero3") == Approx((3 * 4 * parameters + 4 * 1'024'000 + 4 * 1024) * ring));
  CHECK(sent("fsdp") == Approx((3 * 4 + 4) * parameters * ring));
  layout.parallel.reduce_at_boundary = true;
  CHECK(sent("zero2") == Approx(8 * parameters * ring));
  // Five blocks: the last two of each pass stay gathered for the next one, except for the loss
  // block, which runs forward and backward together.
  layout.parallel.reduce_at_boundary = false;
  layout.model = model_of(std::vector<std::vector<int64_t>>(5, {1'024'000, 1024}));
  CHECK(sent("zero3") ==
        Approx((3 * 4 * 5 * parameters + 4 * 1'024'000 * (5 + 5 * 3) + 4 * 5 * 1024) * ring));
  layout.parallel.reshard_after_forward = false;
  CHECK(sent("fsdp") == Approx((3 * 4 * 5 + 4 * 5) * parameters * ring));
  layout.parallel.reshard_after_forward = true;
  layout.mesh.data = 1;
  CHECK(sent("single") == 0);
}

TEST_CASE("hybrid shards are those of the group, and are summed over the replicas") {
  PlannedLayout layout{.parallel = {.strategy = "fsdp", .shard_ranks = 2},
                       .mesh = {.data = 8},
                       .model = model_of({{1'024'000}})};
  const StateMemory cost = state_of(layout);
  CHECK(cost.parameter_bytes == Approx(4.096e6 / 2));
  CHECK(cost.optimizer_bytes == Approx(8.192e6 / 2));
  CHECK(cost.comm_bytes_per_step == Approx(8.192e6 * 1 / 2 + 8.192e6 / 2 * 3 / 4));
}

TEST_CASE("a buffer is as large as the largest of its gather groups") {
  PlannedLayout layout{.parallel = {.strategy = "fsdp"},
                       .mesh = {.data = 2},
                       .model = model_of({{1024}, {4096}, {}, {2048}, {8192}})};
  CHECK(state_of(layout).buffer_bytes == 2 * 4 * (2048 + 8192));  // parameters, gradients
  layout.parallel.overlap = false;
  CHECK(state_of(layout).buffer_bytes == 2 * 4 * 8192);
  layout.parallel.reshard_after_forward = false;
  CHECK(state_of(layout).buffer_bytes == 4 * (1024 + 4096 + 2048 + 8192) + 4 * 8192);
}

TEST_CASE("sums in another dtype need two pieces, at most a bucket and at most a unit") {
  PlannedLayout layout{
      .parallel = {.strategy = "ddp"}, .mesh = {.data = 2}, .model = model_of({{1024}, {4096}})};
  layout.parallel.precision = {.parameter = at::kBFloat16, .reduce = at::kFloat};
  CHECK(state_of(layout).buffer_bytes == 2 * 4 * 4096);
  layout.parallel.bucket_bytes = 4000;
  CHECK(state_of(layout).buffer_bytes == 2 * 4000);
  layout.parallel.precision.gradient = at::kFloat;
  CHECK(state_of(layout).buffer_bytes == 0);
}

TEST_CASE("frozen parameters are held and gathered, and nothing else") {
  PlannedLayout layout{.parallel = {.strategy = "zero1"},
                       .mesh = {.data = 2},
                       .accumulation = 3,
                       .model = freeze(model_of({{1024, 4096}, {2048}, {1024}}),
                                       [](const std::string& block, const std::string& parameter) {
                                         return block == "b1" || parameter == "p1";
                                       })};
  constexpr double kCounts = 8;  // of steps: two on the single rank that writes them
  const StateMemory resident = state_of(layout);
  CHECK(resident.parameter_bytes == 4 * (1024 + 4096 + 2048 + 1024));
  CHECK(resident.gradient_bytes == 4 * 2048);
  CHECK(resident.optimizer_bytes == 8 * 1024);
  CHECK(resident.comm_bytes_per_step == (4 + 4) * 2048 / 2);
  CHECK(resident.saved_bytes - kCounts == (12 * 2048 + 4 * 6144) / 2);
  layout.saves_frozen = false;
  CHECK(state_of(layout).saved_bytes - kCounts == 12 * 2048 / 2);
  layout.parallel.strategy = "fsdp";
  const StateMemory sharded = state_of(layout);
  CHECK(sharded.parameter_bytes == resident.parameter_bytes / 2);
  // The first block's two units share a slot with the third's; the second block's unit has the
  // other slot.
  CHECK(sharded.buffer_bytes == 4 * (5120 + 2048) + 4 * (1024 + 1024));
  // The second block's unit stays gathered. The others are gathered after each other, and trained
  // ones also after their update; the loss runs forward and backward together.
  const double gathered = 3 * (1024 + 4096) + 1024 + 3 * 1024;
  CHECK(sharded.comm_bytes_per_step == (3 * 4 * 2048 + 4 * gathered) / 2);
}

TEST_CASE("offloaded masters and state are those of what is trained") {
  PlannedLayout layout{
      .parallel = {.strategy = "zero2",
                   .offload = {.what = Offload::kOptimizer, .step = OffloadStep::kHost}},
      .mesh = {.data = 2},
      .model = freeze(model_of({{4096}, {2048}, {1024}}),
                      [](const std::string& block, const std::string&) { return block == "b0"; })};
  layout.parallel.precision.parameter = at::kBFloat16;
  const double trained = (2048 + 1024) / 2;
  const StateMemory state = state_of(layout);
  CHECK(state.host_state_bytes == 12 * trained);
  // One buffer for incoming gradients and outgoing parameters.
  CHECK(state.host_bytes == (12 + 2) * trained);
  CHECK(state.optimizer_bytes == 0);
}

TEST_CASE("sums over the tensor axis are staged in memory that counts") {
  const PlannedLayout layout{
      .parallel = {.strategy = "ddp", .sequence_parallel = true},
      .mesh = {.tensor = 2},
      .model = testing::causal(
          testing::sized("bloom", {.vocabulary = 512, .hidden = 128, .heads = 4, .layers = 5}))};
  // Weights and biases of two norms per layer, of the embedding's and the last norm, and biases of
  // two row-parallel layers.
  CHECK(state_of(layout).buffer_bytes == 4 * 128 * (5 * (4 + 2) + 4));
}

TEST_CASE("an expert axis sends tokens and sums, also where it is the whole data axis") {
  DecoderConfig config = LanguageModel::defaults("qwen3_moe");
  config.vocabulary = 64, config.hidden = 32, config.heads = 4, config.layers = 2;
  for (const MeshExtents mesh : {MeshExtents{.data = 2, .expert = 2}, {.data = 4, .expert = 2}}) {
    INFO(mesh.data << " data ranks");
    const PlannedLayout layout{
        .parallel = {.strategy = "zero3"}, .mesh = mesh, .model = testing::causal(config)};
    RankPlanner rank(layout, {});
    rank.step({.rows = 3, .length = 5});
    double tokens = 0, sums = 0;
    for (const Traffic& one : rank.state().traffic) {
      if (one.axis != Axis::kExpert) continue;
      CHECK(one.ranks == 2);
      (one.operation == "all-gather" ? tokens : sums) += one.bytes;
    }
    // Forward: tokens with numbers and weights of their experts, and sums. Backward: gradients of
    // sums, and those of tokens and weights.
    const auto h = static_cast<double>(config.hidden),
               k = static_cast<double>(config.experts_per_token);
    const double numbers = 2 * 3 * 5 * 4;  // of layers and tokens, fp32
    CHECK(tokens == Approx(numbers * (h + 2 * k + h)));
    CHECK(sums == Approx(numbers * (h + h + k)));
  }
}

TEST_CASE("a step of a model that is nothing but parameters takes no memory") {
  PlannedLayout layout{.parallel = {.strategy = "ddp"},
                       .mesh = {.data = 2},
                       .model = model_of({{1 << 20}, {1 << 20}})};
  layout.parallel.precision = {.parameter = at::kBFloat16, .reduce = at::kFloat};
  RankPlanner rank(layout, {});
  CHECK(rank.step({.rows = 1, .length = 1}).total() < 16384);
}

TEST_CASE("a stage holds its blocks and sends their outputs") {
  PlannedLayout layout{.parallel = {.strategy = "ddp"},
                       .mesh = {.pipeline = 2},
                       .accumulation = 4,
                       .model = model_of({{1024}, {1024}, {1024}, {3072}})};
  layout.parallel.pipeline.balance = "parameters";
  layout.parallel.pipeline.block_costs = {1, 1, 1, 3};
  CHECK(state_of(layout, 0).parameter_bytes == Approx(4 * 3072));
  CHECK(state_of(layout, 1).parameter_bytes == Approx(4 * 3072));
  CHECK(state_of(layout, 0).comm_bytes_per_step == Approx(4 * 100 * 4));
  layout.parallel.pipeline.block_costs = {1, 1, 1, 1};
  CHECK(state_of(layout, 1).parameter_bytes == Approx(4 * 4096));
}

TEST_CASE("what an optimizer keeps is asked of it") {
  CHECK(state_needs(make_adamw({})).bytes == 8);
  CHECK(state_needs(make_sgd({})).bytes == 0);
  CHECK(state_needs(make_sgd({.momentum = 0.9})).bytes == 4);
}
