// SPDX-License-Identifier: MIT
// Peak memory of a rank in a step, by the plan and by LibTorch's allocator.
#include <ATen/ATen.h>

#include "lib/plan/memory_plan.h"
#include "lib/testing/player.h"
#include "tessera/generation/generate.h"
#include "tessera/model/lora.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/adamw.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/fused_layers.h"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr double kTolerance = 0.015;

Sizes sizes(int64_t vocabulary = 1024) {
  return {.vocabulary = vocabulary, .hidden = 128, .heads = 4, .layers = 4};
}

ModelSpec bloom(int64_t vocabulary = 1024, double dropout = 0) {
  return causal(sized({.dropout = dropout}, sized("bloom", sizes(vocabulary))));
}

ModelSpec gpt2(double dropout, bool exact_gelu = false) {
  DecoderConfig config =
      sized({.inner = 512, .max_positions = 512, .dropout = dropout}, sized("gpt2", sizes()));
  config.exact_gelu = exact_gelu;
  return causal(config);
}

ModelSpec llama() {
  return causal(sized({.inner = 384, .key_heads = 2, .head_dim = 32}, sized("llama", sizes())));
}

ModelSpec experts(const std::string& family) {
  DecoderConfig config =
      sized({.inner = 384, .key_heads = 2, .head_dim = 32}, sized(family, sizes()));
  config.expert_inner = 192;
  return causal(config);
}

// Adapters on every linear layer.
ModelSpec adapted(const ModelSpec& model) {
  LoraRule rule;
  rule.target_modules = {"all-linear"};
  return add_lora(model, rule);
}

struct PeakCase {
  std::string name;
  ModelSpec model;
  ParallelConfig parallel;
  MeshExtents mesh;
  int64_t accumulation = 1, rows = 3, length = 96;
  bool packed = false, masked = false;

  int ranks() const { return rank_count(mesh); }
};

constexpr int64_t kEvaluationRows = 20;  // more than in a step

MicroBatch micro_batch(PeakCase c, int64_t rows = 0) {
  if (rows > 0) c.rows = rows;
  const at::Tensor ids = at::arange(c.rows * c.length).remainder_(997).view({c.rows, c.length});
  MicroBatch batch = make_micro_batch(ids, ids.clone());
  if (c.packed) {
    const int64_t part = c.length / 4;
    std::vector<int64_t> lengths;
    for (int64_t row = 0; row < c.rows; ++row) {
      lengths.insert(lengths.end(), {part, c.length - part});
    }
    batch.packed = make_packed_rows(lengths, c.length);
  }
  if (c.masked) {  // on the left, so that some queries see no key
    batch.attention_mask = at::ones({c.rows, c.length}, at::kBool);
    batch.attention_mask.narrow(0, 0, 1).narrow(1, 0, 3).fill_(false);
  }
  return batch;
}

// Peak of one rank in its third step. limit: most bytes it may have.
int64_t measured_peak(const PeakCase& c, Communicator& world, int64_t limit = 0) {
  const int64_t begin = CountingAllocator::live_bytes();
  if (limit > 0) CountingAllocator::limit(begin + limit);
  const Player player(world, {c.model, c.mesh, c.parallel});
  Strategy& strategy = player.strategy();
  std::vector<MicroBatch> batches;
  for (int64_t m = 0; m < c.accumulation; ++m) batches.push_back(micro_batch(c));
  for (int step = 0; step < 3; ++step) {
    CountingAllocator::reset_peak();
    strategy.forward_backward(batches);
    strategy.grad_norm_squared();
    strategy.optimizer_step(1e-3);
  }
  return CountingAllocator::peak_bytes() - begin;
}

GenerationOptions generation_options() {
  return {.max_new_tokens = 6, .without_end_token = true, .batch_size = 16};
}

std::vector<std::vector<int64_t>> prompts_of(const PeakCase& c) {
  const int64_t count = 2 * 16 * c.mesh.data * c.mesh.pipeline;
  return {static_cast<size_t>(count), std::vector<int64_t>(static_cast<size_t>(c.length), 7)};
}

// Peaks of one rank in evaluation and generation.
struct Inference {
  int64_t evaluation = 0, generation = 0;
};

Inference measured_inference(const PeakCase& c, Communicator& world) {
  const int64_t begin = CountingAllocator::live_bytes();
  const Player player(world, {c.model, c.mesh, c.parallel});
  Strategy& strategy = player.strategy();
  const auto peak_of = [&](const auto& work) {
    work();
    CountingAllocator::reset_peak();
    work();
    return CountingAllocator::peak_bytes() - begin;
  };
  const std::vector<MicroBatch> batch{micro_batch(c, kEvaluationRows)};
  Inference measured{.evaluation = peak_of([&] { strategy.evaluate(batch); })};
  const auto prompts = prompts_of(c);
  measured.generation =
      peak_of([&] { generate(strategy, player.mesh(), prompts, generation_options()); });
  return measured;
}

std::vector<MemoryPlan> planned(const PeakCase& c) {
  const PlannedLayout layout{
      .parallel = c.parallel, .mesh = c.mesh, .accumulation = c.accumulation, .model = c.model};
  const BetweenSteps between{
      .evaluation = shape_of(micro_batch(c, kEvaluationRows)),
      .generation = BatchShape{.rows = 16,
                               .length = c.length,
                               .head_rows = 16,
                               .capacity = c.length + generation_options().max_new_tokens}};
  return memory_plan(layout, shape_of(micro_batch(c)), card_named("cpu"), between);
}

// Includes state; offloaded parts are in the same memory.
double needed_in(const MemoryPlan& plan, const Activations& pass) {
  return plan.state.device_bytes() + plan.state.host_bytes + pass.total();
}

std::vector<PeakCase> peak_cases() {
  std::vector<PeakCase> all;
  const auto add = [&](const std::string& name, const ModelSpec& model, ParallelConfig parallel,
                       MeshExtents mesh = {}, int64_t accumulation = 1) -> PeakCase& {
    parallel.persistence_threshold = 1000;
    all.push_back({concat(all.size(), " ", name), model, parallel, mesh, accumulation});
    return all.back();
  };
  ParallelConfig half;
  half.precision.parameter = at::kBFloat16;
  const ParallelConfig recompute{.gradient_checkpointing = true};
  add("bloom", bloom(), {});
  add("bloom accumulated", bloom(), {}, {}, 3);
  add("bloom bf16", bloom(), half);
  add("bloom recomputed", bloom(), recompute);
  add("bloom, two blocks recomputed", bloom(), {.recomputed_blocks = {1, 2}});
  add("bloom, first and last block recomputed", bloom(), {.recomputed_blocks = {0, 4}}, {}, 2);
  add("bloom, large head", bloom(8192), {});
  const ModelSpec dropping = bloom(1024, 0.1);
  add("bloom dropout", dropping, {});
  add("bloom dropout packed", dropping, {}).packed = true;
  add("bloom dropout masked", dropping, {}).masked = true;
  add("bloom dropout bf16", dropping, half);
  add("bloom packed", bloom(), {}).packed = true;
  add("bloom masked", bloom(), {}).masked = true;
  add("bloom long", bloom(), {}).length = 320;
  add("gpt2", gpt2(0), {});
  add("gpt2 dropout", gpt2(0.1), {});
  add("gpt2 packed", gpt2(0), {}).packed = true;
  add("gpt2 exact", gpt2(0, true), {});
  add("gpt2 bf16 recomputed", gpt2(0), [&] {
    ParallelConfig config = half;
    config.gradient_checkpointing = true;
    return config;
  }());
  add("llama", llama(), {});
  add("llama bf16", llama(), half);
  add("llama recomputed", llama(), recompute);
  add("llama packed", llama(), {}).packed = true;
  add("experts", experts("qwen3_moe"), {});
  add("experts recomputed", experts("qwen3_moe"), recompute);
  add("experts fused", with_fused_layers(experts("olmoe")), {});
  add("experts fused recomputed", with_fused_layers(experts("olmoe")), recompute);
  add("experts adapted", adapted(experts("qwen3_moe")), {});
  add("experts adapted fused", with_fused_layers(adapted(experts("mixtral"))), recompute);
  add("gpt-oss", experts("gpt_oss"), {});
  add("gpt-oss fused", with_fused_layers(experts("gpt_oss")), {});
  add("gpt-oss fused recomputed", with_fused_layers(experts("gpt_oss")), recompute);
  add("experts zero3", experts("qwen3_moe"), {.strategy = "zero3"}, {.data = 2}, 2);
  for (const bool keep : {false, true}) {
    const ParallelConfig config{.save_norm_outputs = keep};
    const std::string kept = keep ? " kept" : "";
    add("bloom fused" + kept, with_fused_layers(bloom()), config);
    add("gpt2 fused" + kept, with_fused_layers(gpt2(0)), config);
    add("gpt2 exact fused" + kept, with_fused_layers(gpt2(0, true)), config);
    add("llama fused" + kept, with_fused_layers(llama()), config);
    add(concat("llama fused", kept, ", three blocks recomputed"), with_fused_layers(llama()),
        {.recomputed_blocks = {1, 2, 4}, .save_norm_outputs = keep});
  }
  add("bloom adapted", adapted(bloom()), {});
  add("llama fused, adapted, bf16", with_fused_layers(adapted(llama())), half);
  add("llama adapted, zero3", adapted(llama()), {.strategy = "zero3"}, {.data = 2}, 2);
  for (const std::string name : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    add("bloom " + name, bloom(), {.strategy = name}, {.data = 2}, 2);
  }
  ParallelConfig zero3 = half;
  zero3.strategy = "zero3";
  add("llama zero3 bf16", llama(), zero3, {.data = 2});
  add("bloom offload", bloom(), {.strategy = "zero2", .offload = {.what = Offload::kOptimizer}},
      {.data = 2});
  for (const char* schedule : {"1f1b", "gpipe", "interleaved"}) {
    ParallelConfig config{.strategy = "ddp"};
    config.pipeline = {.schedule = schedule, .chunks = *schedule == 'i' ? 2 : 1};
    add(concat("bloom ", schedule), bloom(), config, {.pipeline = 2}, 4);
    config.gradient_checkpointing = true;
    add(concat("bloom recomputed ", schedule), bloom(), config, {.pipeline = 2}, 4);
    config.gradient_checkpointing = false;
    config.recomputed_blocks = {1, 3};
    add(concat("bloom, two blocks recomputed ", schedule), bloom(), config, {.pipeline = 2}, 4);
  }
  ParallelConfig split{.strategy = "ddp"};
  split.pipeline.schedule = "zbh1";
  add("bloom zbh1", bloom(), split, {.pipeline = 2}, 4);
  add("bloom fused zbh1", with_fused_layers(bloom()), split, {.pipeline = 2}, 4);
  add("llama fused zbh1", with_fused_layers(llama()), split, {.pipeline = 3}, 5);
  add("gpt2 fused zbh1 masked", with_fused_layers(gpt2(0)), split, {.pipeline = 2}, 3).masked =
      true;
  split.gradient_checkpointing = true;
  split.strategy = "zero2";
  add("gpt2 fused zbh1 recomputed", with_fused_layers(gpt2(0)), split, {.pipeline = 2, .data = 2},
      4);
  ParallelConfig shared{.strategy = "ddp"};
  shared.pipeline.shared_vocabulary = true;
  add("bloom shared vocabulary", bloom(), shared, {.pipeline = 2}, 4);
  add("bloom tensor", bloom(), {.strategy = "ddp"}, {.tensor = 2});
  add("bloom sequence parallel", bloom(), {.strategy = "ddp", .sequence_parallel = true},
      {.tensor = 2});
  add("gpt2 tensor", gpt2(0), {.strategy = "ddp"}, {.tensor = 2});
  add("llama zero1 x tensor", llama(), {.strategy = "zero1"}, {.data = 2, .tensor = 2}, 2);
  return all;
}

// Calls check(the stage's plan, the measurement) for every rank of the case.
template <typename T, typename Measure, typename Check>
void for_each_rank(const PeakCase& c, const Measure& measure, const Check& check) {
  std::vector<T> measured(static_cast<size_t>(c.ranks()));
  test::run_ranks(c.ranks(), [&](Communicator& world) {
    measured[static_cast<size_t>(world.rank())] = measure(world);
  });
  const std::vector<MemoryPlan> stages = planned(c);
  for (size_t rank = 0; rank < measured.size(); ++rank) {
    INFO(c.name << " rank " << rank);
    check(stages.at(rank / static_cast<size_t>(c.mesh.data * c.mesh.tensor)), measured[rank]);
  }
}

}  // namespace

TEST_CASE("the peak of a step is what the plan says, within 1.5 %") {
  CountingAllocator counting;
  for (const PeakCase& c : peak_cases()) {
    for_each_rank<int64_t>(
        c, [&](Communicator& world) { return measured_peak(c, world); },
        [&](const MemoryPlan& plan, int64_t measured) {
          const double needed = needed_in(plan, plan.activations);
          const auto peak = static_cast<double>(measured);
          INFO("planned " << needed << ", measured " << peak << ", " << 100 * (needed / peak - 1)
                          << " %; running " << (plan.activations.head_runs ? "head" : "block"));
          CHECK(std::abs(needed / peak - 1) <= kTolerance);
        });
  }
}

TEST_CASE(
    "a token costs 4 operations a frozen weight and 6 an adapter's, and 2 below all of them") {
  const ModelSpec plain = llama();
  const auto cost = [](const ModelSpec& model) { return model.flops_per_token(96); };
  const auto count = [](const ModelSpec& model, const std::string& block, bool tables) {
    double numel = 0;
    for (const ParameterInfo& p : parameters_of(model)) {
      const bool counts = p.block != "embedding" || tables;
      if (counts && (block.empty() || p.block == block)) numel += static_cast<double>(p.numel());
    }
    return numel;
  };
  const double base = count(plain, "", false);
  const auto trained = static_cast<double>(parameter_count(adapted(plain)).trained);
  CHECK(cost(adapted(plain)) == Approx(cost(plain) - 2 * base + 6 * trained));
  LoraRule rule;
  rule.target_modules = {"layers.1.self_attn.q_proj"};
  const ModelSpec upper = add_lora(plain, rule);
  CHECK(cost(upper) ==
        Approx(cost(plain) - 2 * base - 2 * count(plain, "layers.0", false) + 6 * 8 * (128 + 128)));
  CHECK(upper.blocks[1].cost.flops_per_token == Approx(plain.blocks[1].cost.flops_per_token / 3));
}

TEST_CASE("the peaks of evaluation and generation are what the plan says, within 1.5 %") {
  CountingAllocator counting;
  for (const PeakCase& c : peak_cases()) {
    // LibTorch's 16-bit products depend on the CPU's instructions.
    if (c.packed || c.masked || c.parallel.precision.parameter != at::kFloat) continue;
    for_each_rank<Inference>(
        c, [&](Communicator& world) { return measured_inference(c, world); },
        [&](const MemoryPlan& plan, const Inference& own) {
          const auto check_near = [&](const char* what, const Activations& pass, int64_t peak) {
            const double needed = needed_in(plan, pass);
            INFO(what << ": planned " << needed << " with a cache of " << pass.cache
                      << ", measured " << peak << ", "
                      << 100 * (needed / static_cast<double>(peak) - 1) << " %");
            CHECK(std::abs(needed / static_cast<double>(peak) - 1) <= kTolerance);
          };
          check_near("evaluation", plan.evaluation, own.evaluation);
          check_near("generation", plan.generation, own.generation);
        });
  }
}

TEST_CASE("what the plan calls too large runs out of memory, and what barely fits runs") {
  CountingAllocator counting;
  int tried = 0;
  for (const PeakCase& c : peak_cases()) {
    if (c.parallel.strategy == "ddp" || c.parallel.offload.what != Offload::kNone) continue;
    if (++tried > 12) break;
    const std::vector<MemoryPlan> stages = planned(c);
    // Limits of 1.5 % above and below the plan.
    const auto runs_within = [&](double share) {
      try {
        test::run_ranks(c.ranks(), [&](Communicator& world) {
          const MemoryPlan& plan = stages.front();
          measured_peak(c, world, static_cast<int64_t>(needed_in(plan, plan.activations) * share));
        });
      } catch (const std::bad_alloc&) {
        return false;
      }
      return true;
    };
    INFO(c.name);
    CHECK(runs_within(1 + kTolerance));
    CHECK(!runs_within(1 - kTolerance));
  }
  CHECK(tried >= 10);
}
