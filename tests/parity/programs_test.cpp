// SPDX-License-Identifier: MIT
// Exported programs under every strategy: the numbers of one rank.
#include <ATen/ATen.h>

#include "tessera/checkpoint/huggingface.h"
#include "tessera/optim/sgd.h"
#include "tessera/plan/dry_step.h"
#include "tessera/program/from_program.h"
#include "tests/parity/rows.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

std::string directory_of(const std::string& name) {
  return std::string(TESSERA_PROGRAMS) + "/" + name;
}

// Rows of random tokens; the weights are those of the directory.
ParityWork decoder_work(const std::string& name, int64_t vocabulary, const TensorSource& weights) {
  ParityWork work = token_work(from_program(directory_of(name)),
                               {.vocabulary = vocabulary, .rows = 8, .sequence = 6, .steps = 3});
  work.source = &weights;
  return work;
}

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

ParityRow row_of(const std::string& strategy, ParityRow row, bool recomputed = false) {
  row.parallel.strategy = strategy;
  row.parallel.persistence_threshold = 20;
  row.parallel.gradient_checkpointing = recomputed;
  return row;
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

}  // namespace

TEST_CASE("exported decoders give the numbers of one rank under every strategy") {
  for (const std::string name : {"gemma3", "llama", "gpt_oss", "phi3"}) {
    INFO(name);
    const HuggingFaceDirectory weights(directory_of(name));
    const ParityWork work = decoder_work(name, 96, weights);
    const RankRecord expected = single_run(work);
    for (const ParityRow& row : decoder_rows()) check_row(row, work, expected);
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

TEST_CASE("exported programs run dry") {
  for (const std::string name : {"gemma3", "gpt_neox", "gpt_oss", "llama", "olmoe", "phi3"}) {
    for (const auto& [mesh, strategy] :
         {std::pair{MeshExtents{1, 2, 1}, "zero3"}, std::pair{MeshExtents{2, 1, 1}, "single"}}) {
      INFO(name << " " << strategy);
      const HuggingFaceDirectory weights(directory_of(name));
      const ParityWork work = decoder_work(name, 96, weights);
      DryStep step{.model = work.model, .mesh = mesh, .micro_batches = {work.global_batches[0]}};
      step.parallel.strategy = strategy;
      const StepLedger ledger = dry_step(step);
      CHECK(ledger.device.bytes > ledger.device.lasting);
      CHECK(ledger.communication.operations.size() > 2);
    }
  }
}
