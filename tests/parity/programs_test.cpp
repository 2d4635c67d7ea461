// SPDX-License-Identifier: MIT
// Exported programs under every strategy: the numbers of one rank.
#include <ATen/ATen.h>

#include <cmath>

#include "lib/generation/generate_by.h"
#include "lib/testing/player.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/model/lora.h"
#include "tessera/optim/sgd.h"
#include "tessera/plan/dry_step.h"
#include "tessera/program/from_program.h"
#include "tests/parity/exported_adapter.h"
#include "tests/parity/programs_work.h"
#include "tests/support/exported_program.hpp"
#include "tests/support/fused_layers.h"
#include "tests/support/ranks.hpp"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::require;

namespace {

// A module with dropout and BatchNorm, whose numbers depend on the cut into micro-batches.
ParityWork module_work(const TensorSource& weights) {
  ParityWork work = token_work(from_program(directory_of("toy"), {.running_statistics_of_rank = 0}),
                               {.rows = 16, .steps = 3});
  work.source = &weights;
  // The gradient of a bias in front of BatchNorm is rounding noise, which Adam makes steps of.
  work.optimizer = make_sgd({});
  for (size_t i = 0; i < work.global_batches.size(); ++i) {
    const at::Generator generator = at::detail::createCPUGenerator(i + 1);
    work.global_batches[i] =
        make_micro_batch(at::randn({16, 12}, generator, at::kFloat),
                         at::randint(0, 4, {16}, generator, at::dtype(at::kLong)));
  }
  return work;
}

std::vector<ParityRow> decoder_rows() {
  std::vector<ParityRow> rows;
  for (const std::string& strategy : kShardingStrategies) {
    rows.push_back(row_of(strategy, {.ranks = 2, .accumulation = 2}));
  }
  rows.push_back(row_of("zero3", {.ranks = 4}, true));
  rows.push_back(row_of("single", {.ranks = 2, .accumulation = 2, .pipeline = 2}));
  rows.push_back(row_of("fsdp", {.ranks = 4, .accumulation = 2, .pipeline = 2}, true));
  rows.push_back(row_of("zero2", {.ranks = 2}));
  rows.back().parallel.offload.what = Offload::kOptimizer;
  rows.push_back(row_of("zero3", {.ranks = 2}));
  rows.back().parallel.offload.what = Offload::kOptimizerAndParameters;
  return rows;
}

std::vector<ParityRow> adapter_rows() {
  std::vector<ParityRow> rows = {
      row_of("zero2", {.ranks = 2, .accumulation = 2}),
      row_of("zero3", {.ranks = 4, .accumulation = 1}, true),
      row_of("fsdp", {.ranks = 2, .accumulation = 2}),
      row_of("single", {.ranks = 2, .accumulation = 4, .pipeline = 2}),
      row_of("zero3", {.ranks = 4, .accumulation = 2, .pipeline = 2}, true),
      row_of("zero3", {.ranks = 2, .accumulation = 2})};
  rows.back().parallel.offload.what = Offload::kOptimizerAndParameters;
  return rows;
}

// The steps of reference.json by SGD, without clipping.
ParityWork reference_work(const std::string& name, const Json& reference,
                          const TensorSource& weights, bool own_operators) {
  ParityWork work{.model = from_program(directory_of(name), {.own_operators = own_operators})};
  const double rate = reference.at("optimizers").at("sgd").at("settings").at("lr").as_double();
  for (const Json& batch : reference.at("batches").items()) {
    work.global_batches.push_back(test::causal_batch(batch));
  }
  work.trainer.max_grad_norm = 0;
  work.trainer.schedule = {.kind = LrScheduleKind::kConstant, .peak = rate};
  work.optimizer = make_sgd({});
  work.source = &weights;
  return work;
}

// Buffers of the last step.
Named last_buffers(const std::vector<RankRecord>& ranks) {
  Named all;
  for (const RankRecord& rank : ranks) {
    for (const auto& [name, value] : rank.steps.back().buffers) all.emplace(name, value);
  }
  return all;
}

void check_same_module(const ParityRow& row, const ParityWork& work,
                       const std::vector<RankRecord>& expected) {
  INFO(row.name());
  const std::vector<RankRecord> actual = run_on_threads(row, work, /*visits=*/true);
  CHECK(difference(actual.front(), expected.front(), 1e-5) == "");
  CHECK(difference(last_buffers(actual), last_buffers(expected), 1e-6) == "");
}

// first: bound of the first loss. Gradients of 16 bits are rounded in another order, on CPUs of
// each vector width in its own: norms may differ by half of bf16's unit, 2^-8, and later losses by
// a quarter.
void check_bf16(const std::vector<RankRecord>& ranks, const Json& expected, double first) {
  double squares = 0;
  for (const auto& [name, gradient] : expected.at("gradients").members()) {
    squares += std::pow(gradient.at("norm").as_double(), 2);
  }
  const Json losses = expected.at("loss");
  for (const RankRecord& rank : ranks) {
    REQUIRE(rank.steps.size() == losses.size());
    CHECK(rank.steps[0].norm == Approx(std::sqrt(squares)).epsilon(0x1p-9));
    for (size_t i = 0; i < losses.size(); ++i) {
      CHECK(rank.steps[i].loss == Approx(losses.at(i).as_double()).epsilon(i == 0 ? first : 1e-3));
    }
  }
}

}  // namespace

TEST_CASE("exported decoders give the numbers of one rank under every strategy") {
  for (const std::string name : {"gemma3", "llama", "gpt_oss", "phi3", "qwen2_moe"}) {
    INFO(name);
    const HuggingFaceDirectory weights(directory_of(name));
    const ParityWork work = decoder_work(name, 96, weights);
    const RankRecord expected = single_run(work);
    for (const ParityRow& row : decoder_rows()) check_row(row, work, expected);
  }
}

TEST_CASE("ranks share rows of exported decoders whose attentions were recognised") {
  for (const std::string name : {"gemma3", "llama", "phi3", "gpt_neox", "mpt", "qwen2_moe"}) {
    INFO(name);
    const HuggingFaceDirectory weights(directory_of(name));
    const ParityWork plain = decoder_work(name, 96, weights);
    ParityWork packed = plain;
    for (MicroBatch& batch : packed.global_batches) {
      batch.packed = make_packed_rows({2, 4, 6, 1, 5, 3, 3, 6, 6, 6, 6}, 6);
    }
    packed.batches = [batches = packed.global_batches](size_t step, const ParityRow&, int) {
      return std::vector<MicroBatch>{batches[step]};
    };
    for (const ParityWork* work : std::initializer_list<const ParityWork*>{&plain, &packed}) {
      const RankRecord expected = single_run(*work);
      for (const ContextAttention by : {ContextAttention::kKeys, ContextAttention::kAuto}) {
        ParityRow row = row_of("zero3", {.ranks = 2, .context = 2}, true);
        row.parallel.context_attention = by;
        check_row(row, *work, expected, 2e-5);
        row = row_of("ddp", {.ranks = 4, .context = 4});
        row.parallel.context_attention = by;
        check_row(row, *work, expected, 2e-5);
      }
    }
  }
}

TEST_CASE("a program that drops is refused where ranks share rows") {
  const HuggingFaceDirectory weights(directory_of("llama"));
  ParityWork work = decoder_work("llama", 96, weights);
  work.model =
      add_lora(work.model, {.r = 2, .alpha = 4, .dropout = 0.2, .target_modules = {"all-linear"}});
  ParityRow row = row_of("ddp", {.ranks = 2, .context = 2});
  CHECK_THROWS_WITH(run_on_threads(row, work),
                    test::contains("the exported program draws random numbers in training"));
}

TEST_CASE("an exported classifier gives the numbers of one rank under every strategy") {
  const HuggingFaceDirectory weights(directory_of("classifier"));
  ParityWork work = decoder_work("classifier", 96, weights);
  for (size_t i = 0; i < work.global_batches.size(); ++i) {
    const at::Generator generator = at::detail::createCPUGenerator(i + 1);
    const auto whole = at::dtype(at::kLong);
    work.global_batches[i] = make_micro_batch(at::randint(3, 96, {8, 6}, generator, whole),
                                              at::randint(0, 3, {8}, generator, whole));
  }
  const RankRecord expected = single_run(work);
  for (const ParityRow& row : decoder_rows()) check_row(row, work, expected);
}

TEST_CASE("whole layers of exported decoders in their fused version, under every strategy") {
  for (const std::string name : {"llama", "phi3"}) {
    INFO(name);
    const HuggingFaceDirectory weights(directory_of(name));
    ParityWork work = decoder_work(name, 96, weights);
    const RankRecord expected = single_run(work);
    work.model = with_fused_layers(std::move(work.model));
    check_row(row_of("single", {.accumulation = 2}), work, expected);
    for (ParityRow row : decoder_rows()) check_row(row, work, expected);
  }
}

namespace {

// Continuations of prompts of several lengths, with and without a key/value cache.
void check_generation(const std::string& name, const std::string& strategy, MeshExtents mesh) {
  const HuggingFaceDirectory weights(directory_of(name));
  const std::vector<std::vector<int64_t>> prompts{
      {3, 4, 9}, {17}, {5, 6, 7, 8, 9, 10, 11, 12}, {60, 2}, {33, 34, 35, 36}};
  Setup setup{.model = from_program(directory_of(name)),
              .mesh = mesh,
              .parallel = {.strategy = strategy},
              .source = &weights};
  play(setup, [&](Player& player) {
    require(player.strategy().supports_kv_cache(), name, " keeps keys and values");
    const auto rows_with = [&](bool cache) {
      const GenerationOptions options{.max_new_tokens = 9,
                                      .without_end_token = true,
                                      .vocabulary = 96,
                                      .batch_size = 3,
                                      .use_cache = cache};
      std::vector<std::vector<int64_t>> rows;
      for (const Beginnings how : {Beginnings::kPadded, Beginnings::kPacked}) {
        if (how == Beginnings::kPacked && !cache) continue;
        for (const GeneratedRow& row :
             generate_by(how, player.strategy(), player.mesh(), prompts, options)) {
          rows.push_back(row.ids);
        }
      }
      return rows;
    };
    const auto with = rows_with(true), without = rows_with(false);
    for (size_t i = 0; i < with.size(); ++i) {
      require(with[i] == without[i % prompts.size()], name, ", row ", i, ": ",
              at::IntArrayRef(with[i]), ", without a cache ",
              at::IntArrayRef(without[i % prompts.size()]));
    }
  });
}

}  // namespace

TEST_CASE("exported decoders generate the same tokens with a key/value cache and without") {
  for (const std::string name : {"gemma3", "gpt_neox", "llama", "phi3"}) {
    INFO(name);
    check_generation(name, "single", {});
    check_generation(name, "zero3", {.data = 2});
  }
  check_generation("llama", "single", {.pipeline = 2});
}

TEST_CASE("exported decoders in which tokens meet elsewhere generate without a cache") {
  for (const std::string name : {"gpt_oss", "olmoe"}) {
    const HuggingFaceDirectory weights(directory_of(name));
    play({.model = from_program(directory_of(name)), .source = &weights}, [&](Player& player) {
      require(!player.strategy().supports_kv_cache(), name, " keeps nothing");
    });
  }
}

TEST_CASE("a balance loss crosses blocks with its gradients") {
  const HuggingFaceDirectory weights(directory_of("olmoe"));
  const ParityWork work = decoder_work("olmoe", 96, weights);
  REQUIRE(work.model.blocks.back().takes == 3);  // the hidden state and the routers' scores
  const auto one = run_on_threads(row_of("single", {.accumulation = 4}), work);
  for (const ParityRow& row :
       {row_of("zero3", {.accumulation = 4}, true), row_of("fsdp", {.ranks = 2, .accumulation = 2}),
        row_of("zero2", {.ranks = 4, .accumulation = 1}),
        row_of("single", {.ranks = 2, .accumulation = 4, .pipeline = 2}),
        row_of("zero3", {.ranks = 4, .accumulation = 2, .pipeline = 2}, true)}) {
    check_row(row, work, one.front());
  }
}

TEST_CASE("an exported module with dropout and running statistics is the same on all layouts") {
  const HuggingFaceDirectory weights(directory_of("toy"));
  const ParityWork work = module_work(weights);
  const auto one = run_on_threads(row_of("single", {.accumulation = 4}), work, /*visits=*/true);
  REQUIRE(last_buffers(one).size() == 7);
  REQUIRE(work.model.block_count() == 4);
  for (const ParityRow& row :
       {row_of("single", {.accumulation = 4}, true),
        row_of("single", {.ranks = 2, .accumulation = 4, .pipeline = 2}),
        row_of("zero3", {.accumulation = 4}, true),
        row_of("single", {.ranks = 2, .accumulation = 4, .pipeline = 2}, true)}) {
    check_same_module(row, work, one);
  }
  const auto two = run_on_threads(row_of("ddp", {.ranks = 2, .accumulation = 2}), work, true);
  for (const std::string strategy : {"zero1", "zero2", "zero3", "fsdp"}) {
    check_same_module(row_of(strategy, {.ranks = 2, .accumulation = 2}), work, two);
    check_same_module(row_of(strategy, {.ranks = 2, .accumulation = 2}, true), work, two);
  }
}

TEST_CASE("a program in bf16 has the losses of PyTorch with fp32 masters") {
  const std::string name = "llama_bf16";
  const HuggingFaceDirectory weights(directory_of(name));
  const Json reference = Json::parse_file(directory_of(name) + "/reference.json");
  for (const bool own_operators : {false, true}) {
    const ParityWork work = reference_work(name, reference, weights, own_operators);
    for (ParityRow row :
         {row_of("single", {}), row_of("single", {.accumulation = 2}, /*recomputed=*/true),
          row_of("zero3", {.ranks = 2, .accumulation = 2}), row_of("fsdp", {.ranks = 2}),
          row_of("single", {.ranks = 2, .accumulation = 2, .pipeline = 2})}) {
      row.parallel.precision.parameter = at::kBFloat16;
      INFO(row.name() << ", own operators " << own_operators);
      // ATen's operators are PyTorch's, and sum in another order on CPUs of another vector width.
      // Own ones round elsewhere.
      check_bf16(run_on_threads(row, work), reference.at("optimizers").at("sgd"),
                 own_operators ? 1e-3 : 1e-4);
    }
  }
}

TEST_CASE("PEFT's adapters of exported programs train as in PEFT, and the same on all layouts") {
  for (const std::string name : {"gpt_neox", "olmoe"}) {
    for (const bool own_operators : {true, false}) {
      INFO(name << ", own operators " << own_operators);
      const ExportedAdapter exported(directory_of(name), {.own_operators = own_operators});
      const RankRecord trained =
          run_on_threads(row_of("single", {}), peft_work(exported), /*visits=*/true).front();
      CHECK(difference_of_losses(trained, exported.expected.at("loss")) < 1e-5);
      CHECK(difference_of_tensors(trained, exported) == "");
    }
    const ExportedAdapter exported(directory_of(name));
    const ParityWork work = adapter_work(exported);
    const auto alone = run_on_threads(row_of("single", {.accumulation = 4}), work);
    for (const ParityRow& row : adapter_rows()) {
      INFO(name << " " << row.name());
      for (const RankRecord& rank : run_on_threads(row, work)) {
        CHECK(difference(rank, alone.front(), 1e-5) == "");
      }
    }
  }
}

TEST_CASE("dropout of adapters of an exported program is the same on all layouts") {
  const std::string directory = directory_of("llama");
  const HuggingFaceDirectory weights(directory);
  LoraRule rule;
  rule.dropout = 0.3;
  rule.target_modules = {"q_proj", "down_proj", "lm_head"};
  ParityWork work = decoder_work("llama", 96, weights);
  work.model = add_lora(std::move(work.model), rule);
  work.optimizer = make_sgd({});
  const auto alone = run_on_threads(row_of("single", {.accumulation = 4}), work);
  for (const ParityRow& row : {row_of("single", {.accumulation = 4}, true),
                               row_of("single", {.ranks = 2, .accumulation = 4, .pipeline = 2}),
                               row_of("zero3", {.accumulation = 4}, true)}) {
    INFO(row.name());
    CHECK(difference(run_on_threads(row, work).front(), alone.front(), 1e-5) == "");
  }
  rule.dropout = 0;
  work.model = add_lora(from_program(directory), rule);
  CHECK(difference(run_on_threads(row_of("single", {.accumulation = 4}), work).front(),
                   alone.front(), 1e-5) != "");
}

TEST_CASE("exported programs run dry") {
  for (const std::string name : {"gemma3", "gpt_neox", "gpt_oss", "llama", "olmoe", "phi3"}) {
    const bool shares = name == "gemma3" || name == "gpt_neox" || name == "llama";
    for (const auto& [mesh, strategy] :
         {std::pair{MeshExtents{1, 2, 1}, "zero3"}, std::pair{MeshExtents{2, 1, 1}, "single"},
          std::pair{MeshExtents{1, 1, shares ? 2 : 1}, "single"}}) {
      INFO(name << " " << strategy);
      const HuggingFaceDirectory weights(directory_of(name));
      const ParityWork work = decoder_work(name, 96, weights);
      DryStep step{.model = work.model, .mesh = mesh, .micro_batches = {work.global_batches[0]}};
      step.parallel.strategy = strategy;
      const StepLedger ledger = dry_step(step);
      CHECK(ledger.device.bytes > ledger.device.lasting);
      if (mesh.pipeline * mesh.data * mesh.tensor == 1) continue;
      CHECK(ledger.communication.operations.size() > 2);
    }
  }
}
