// SPDX-License-Identifier: MIT
// Experts that ranks own: steps, norms and weights are those of one rank, in every layout around
// the expert axis.
#include <ATen/ATen.h>

#include "lib/testing/player.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_writer.h"
#include "tessera/model/lora.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/muon.h"
#include "tests/parity/ragged_work.h"
#include "tests/parity/rows.h"
#include "tests/support/fused_layers.h"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/temp_dir.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kVocabulary = 31;

DecoderConfig small(const std::string& family) {
  DecoderConfig config = sized(family, {.vocabulary = kVocabulary,
                                        .hidden = 16,
                                        .heads = 2,
                                        .layers = 2,
                                        .inner = 20,
                                        .key_heads = 2,
                                        .head_dim = 8});
  config.pad_token = 0;
  config.experts = 8;
  config.experts_per_token = 3;
  config.expert_inner = 6;
  config.router_aux_loss_coef = config.router_z_loss_coef = 0;
  return config;
}

ModelSpec model_of(const std::string& family) { return causal(small(family)); }

ModelSpec adapted(const std::string& family) {
  LoraRule rule;
  rule.r = 2;
  rule.alpha = 8;
  rule.target_modules = {"all-linear"};
  return add_lora(model_of(family), rule);
}

ParityWork ten_steps(const ModelSpec& model) {
  ParityWork work = token_work(model, {.vocabulary = kVocabulary, .steps = 10});
  work.trainer.schedule.total_steps = 10;
  return work;
}

ParityRow row_of(const std::string& strategy, int ranks, int expert, int accumulation = 2) {
  ParityRow row{.ranks = ranks, .accumulation = accumulation, .expert = expert};
  row.parallel.strategy = strategy;
  row.parallel.persistence_threshold = 60;  // adapters of experts stay whole, experts do not
  return row;
}

std::vector<ParityRow> layouts() {
  std::vector<ParityRow> rows;
  for (const std::string& strategy : kShardingStrategies) {
    for (const auto [ranks, expert] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
      rows.push_back(row_of(strategy, ranks, expert));
    }
    rows[rows.size() - 2].parallel.overlap = false;
    rows.back().parallel.gradient_checkpointing = true;
  }
  rows.push_back(row_of("zero2", 4, 2));
  rows.back().parallel.reduce_at_boundary = true;
  rows.push_back(row_of("fsdp", 4, 2));
  rows.back().parallel.reshard_after_forward = false;
  rows.back().parallel.unit_numel = 3000;
  rows.push_back(row_of("fsdp", 2, 2));
  rows.back().parallel.shard_ranks = 1;
  rows.push_back(row_of("zero3", 4, 2));
  rows.back().parallel.coalesce_bytes = 1 << 20;
  rows.back().parallel.prefetch_blocks = 0;
  for (const std::string strategy : {"ddp", "zero1", "zero3"}) {
    rows.push_back(row_of(strategy, 4, 2, /*accumulation=*/3));
    rows.back().pipeline = 2;
  }
  return rows;
}

}  // namespace

TEST_CASE("experts on an expert axis train as on one rank") {
  for (const std::string family : {"qwen3_moe", "olmoe"}) {
    const ParityWork work = ten_steps(model_of(family));
    const RankRecord expected = single_run(work);
    for (const ParityRow& row : layouts()) {
      INFO(family);
      check_row(row, work, expected);
    }
  }
}

TEST_CASE("micro-batches of an expert axis may differ in length") {
  const ModelSpec model = model_of("mixtral");
  for (const RowsAre rows : {RowsAre::kPadded, RowsAre::kPacked, RowsAre::kWithoutPadding}) {
    const ParityWork work = ragged_work(model, {}, kVocabulary, rows);
    const RankRecord expected = single_run(work);
    for (const ParityRow& row :
         {row_of("ddp", 2, 2), row_of("zero3", 4, 2), row_of("zero2", 4, 4)}) {
      INFO("rows are " << static_cast<int>(rows));
      check_row(row, work, expected);
    }
  }
}

TEST_CASE("adapters of experts on an expert axis train as on one rank") {
  ParityWork work = ten_steps(adapted("qwen3_moe"));
  work.trainer.max_grad_norm = 0.01;
  const RankRecord expected = single_run(work);
  for (const ParityRow& row : layouts()) check_row(row, work, expected);
}

TEST_CASE("adapters of tensors of all experts on an expert axis train as on one rank") {
  LoraRule rule;
  rule.r = 2;
  rule.alpha = 8;
  rule.target_modules = {"all-linear"};  // attention's layers
  rule.target_parameters = {"experts.gate_up_proj", "experts.down_proj"};
  ParityWork work = ten_steps(add_lora(model_of("qwen3_moe"), rule));
  work.trainer.max_grad_norm = 0.001;
  const RankRecord expected = single_run(work);
  for (const ParityRow& row : layouts()) check_row(row, work, expected);
}

TEST_CASE("hand-scheduled layers and shared experts on an expert axis train as on one rank") {
  for (const std::string family : {"qwen3_moe", "qwen2_moe", "glm4_moe"}) {
    DecoderConfig config = small(family);
    config.shared_inner = family == "qwen3_moe" ? 0 : 10;
    config.query_key_value_bias = false;  // that of keys has hardly any gradient
    const ParityWork work = ten_steps(with_fused_layers(causal(config)));
    const RankRecord expected = single_run(work);
    std::vector<ParityRow> rows{row_of("ddp", 2, 2), row_of("zero3", 4, 2), row_of("zero1", 4, 2)};
    rows[0].parallel.recompute_experts = rows[1].parallel.recompute_experts = true;
    rows[2].pipeline = 2;
    for (const ParityRow& row : rows) {
      INFO(family);
      check_row(row, work, expected);
    }
  }
}

TEST_CASE("losses of routers on an expert axis are those of each micro-batch") {
  DecoderConfig config = small("qwen3_moe");
  config.router_aux_loss_coef = 0.5;
  config.router_z_loss_coef = 0.1;
  const ParityWork work = token_work(causal(config), {.vocabulary = kVocabulary, .steps = 6});
  const RankRecord expected = run_row({.accumulation = 4}, work).front();
  for (const ParityRow& row :
       {row_of("ddp", 2, 2), row_of("zero3", 2, 2), row_of("zero1", 4, 2, 1)}) {
    check_row(row, work, expected);
  }
}

namespace {

Setup setup_of(MeshExtents mesh, const std::string& strategy) {
  Setup setup{.model = model_of("qwen3_moe"), .mesh = mesh};
  setup.parallel.strategy = strategy;
  setup.parallel.persistence_threshold = 60;
  return setup;
}

MicroBatch rows_of(uint64_t seed, int64_t rows = 4) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor ids = at::randint(1, kVocabulary, {rows, 6}, generator, at::kLong);
  return make_micro_batch(ids, ids.roll(-1, 1));
}

// One rank trains on all rows, several share them.
void train(Player& player, int step) {
  std::vector<MicroBatch> own;
  const int parts = 4, share = parts / player.data_ranks();
  for (int i = 0; i < share; ++i) {
    own.push_back(rows_of(static_cast<uint64_t>(100 * step + player.data_rank() * share + i)));
  }
  player.train(own, {.max_norm = 0.1});
}

Named parameters_after(const std::string& directory, const MeshExtents& mesh,
                       const std::string& strategy) {
  Named found;
  play(setup_of(mesh, strategy), [&](Player& player) {
    load_checkpoint(player.world(), open_checkpoint(player.world(), directory),
                    player.strategy().state());
    player.strategy().state_restored();
    for (int step = 2; step < 5; ++step) train(player, step);
    const Named all = parameters_of(player.strategy());
    if (player.rank() == 0) found = all;
  });
  return found;
}

}  // namespace

TEST_CASE("a checkpoint of an expert axis loads under every layout, and back") {
  const std::vector<std::pair<MeshExtents, std::string>> layouts{
      {{}, "single"},
      {{.data = 2, .expert = 2}, "ddp"},
      {{.data = 2}, "zero3"},
      {{.data = 4, .expert = 2}, "zero3"},
      {{.data = 4, .expert = 4}, "zero1"},
      {{.pipeline = 2, .data = 2, .expert = 2}, "zero2"},
      {{.data = 2, .tensor = 2}, "fsdp"}};
  Named expected;
  for (const auto& [mesh, strategy] : layouts) {
    TempDir directory;
    play(setup_of(mesh, strategy), [&](Player& player) {
      for (int step = 0; step < 2; ++step) train(player, step);
      save_checkpoint(player.world(), directory.path("run"), 2, player.strategy().state(), "{}");
    });
    const std::string saved = directory.path("run/checkpoint-2");
    for (const auto& [other, with] : layouts) {
      const Named found = parameters_after(saved, other, with);
      if (expected.empty()) expected = found;
      INFO(strategy << " expert " << mesh.expert << " to " << with << " expert " << other.expert);
      CHECK(difference(found, expected, 1e-5) == "");
    }
  }
}

TEST_CASE("every rank of an expert axis holds its part of the experts alone") {
  const auto bytes_of = [](const MeshExtents& mesh, const std::string& strategy) {
    StrategyMemory memory;
    play(setup_of(mesh, strategy), [&](Player& player) {
      train(player, 0);
      test::require(player.strategy().parameter_count() > 0, "parameters are counted");
      if (player.rank() == 0) memory = player.strategy().memory();
    });
    return memory;
  };
  const StrategyMemory whole = bytes_of({}, "single"),
                       half = bytes_of({.data = 2, .expert = 2}, "ddp");
  const int64_t experts = 2 * 8 * (12 * 16 + 16 * 6) * int64_t{sizeof(float)};
  const auto near = [](int64_t a, int64_t b) { return std::abs(a - b) < 4096; };
  INFO(whole.parameter_bytes << " and " << half.parameter_bytes << " bytes of parameters");
  CHECK(near(whole.parameter_bytes - half.parameter_bytes, experts / 2));
  CHECK(near(whole.optimizer_bytes - half.optimizer_bytes, experts));
}

TEST_CASE("what an expert axis does not take is refused by name") {
  const auto refusal = [](MeshExtents mesh, const ParallelConfig& parallel, const ModelSpec& model,
                          const OptimizerFactory& optimizer = make_adamw({})) {
    std::string text;
    try {
      play({.model = model, .mesh = mesh, .parallel = parallel, .optimizer = optimizer},
           [](Player&) {});
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kInvalidArgument);
      text = error.what();
    }
    return text;
  };
  const ModelSpec model = model_of("qwen3_moe");
  ParallelConfig zero1;
  zero1.strategy = "zero1";
  CHECK_THAT(refusal({.data = 2, .tensor = 2, .expert = 2}, zero1, model),
             test::contains("beside a tensor axis of 2 ranks is not built"));
  CHECK_THAT(refusal({.data = 2, .context = 2, .expert = 2}, zero1, model),
             test::contains("beside a context axis of 2"));
  CHECK_THAT(refusal({.data = 3, .expert = 2}, zero1, model),
             test::contains("must divide the data axis of 3"));
  CHECK_THAT(refusal({.data = 3, .expert = 3}, zero1, model),
             test::contains("8 experts a layer, which do not divide"));
  CHECK_THAT(
      refusal(
          {.data = 2, .expert = 2}, zero1,
          causal(sized(
              "llama",
              {.vocabulary = kVocabulary, .hidden = 16, .heads = 2, .layers = 1, .inner = 20}))),
      test::contains("has no experts that ranks can divide"));
  ParallelConfig offloads = zero1;
  offloads.offload.what = Offload::kOptimizer;
  CHECK_THAT(refusal({.data = 2, .expert = 2}, offloads, model),
             test::contains("--offload optimizer is not built"));
  ParallelConfig hybrid;
  hybrid.strategy = "fsdp";
  hybrid.shard_ranks = 2;
  CHECK_THAT(refusal({.data = 4, .expert = 2}, hybrid, model),
             test::contains("with shard_ranks 2 is not built"));
  CHECK_THAT(refusal({.data = 2, .expert = 2}, zero1, model, make_muon({}, make_adamw({}))),
             test::contains("whole matrices, such as Muon, is not built"));
}
