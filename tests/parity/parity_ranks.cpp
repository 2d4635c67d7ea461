// SPDX-License-Identifier: MIT
// The parity table with one process per rank, over MPI, TCP or NCCL:
//   mpirun -n 4 parity_ranks [transport [PART OF A ROW'S NAME]]
// Compares every row with the oracle on the CPU. Prints one line per row; exits 1 if one differs.
#include <ATen/ATen.h>

#include <cstdio>
#include <set>

#include "tessera/comm/launch.h"
#include "tessera/core/error.h"
#include "tessera/models/language_model.h"
#include "tests/parity/oracle_run.h"
#include "tests/parity/ragged_work.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"
#include "tests/support/toy_models.h"

namespace tessera::testing {
namespace {

constexpr int64_t kBloomHeads = 12, kWindowedKeyHeads = 2;

// Every other layer with a window; heads that GPUs have kernels for.
DecoderConfig windowed() {
  DecoderConfig config = sized("qwen3", {.vocabulary = 67,
                                         .hidden = 64,
                                         .heads = 8,
                                         .layers = 2,
                                         .inner = 96,
                                         .key_heads = kWindowedKeyHeads,
                                         .head_dim = 16});
  config.windows = {4, 0};
  return config;
}

// Every token takes all experts, as roundings choose among close ones in 16 bits.
DecoderConfig with_experts() {
  DecoderConfig config = sized("mixtral", {.vocabulary = 67,
                                           .hidden = 64,
                                           .heads = 4,
                                           .layers = 2,
                                           .inner = 96,
                                           .key_heads = 2,
                                           .head_dim = 16});
  config.experts = config.experts_per_token = 4;
  config.expert_inner = 32;
  config.router_aux_loss_coef = 0;
  return config;
}

ParityWork make_work(const std::string& model) {
  const auto bloom =
      sized("bloom", {.vocabulary = 67, .hidden = 96, .heads = kBloomHeads, .layers = 4});
  const ToyConfig toy;
  if (model == "packed") {
    return ragged_work(causal(bloom), plain_bloom(bloom), bloom.vocabulary, RowsAre::kPacked);
  }
  if (model == "windowed packed") {
    return ragged_work(causal(windowed()), plain_llama(windowed()), 67, RowsAre::kPacked);
  }
  if (model == "windowed") {
    return token_work(causal(windowed()), {.vocabulary = 67, .sequence = 13},
                      plain_llama(windowed()));
  }
  if (model == "experts") {
    return token_work(causal(with_experts()), {.vocabulary = 67}, plain_llama(with_experts()));
  }
  ParityWork work =
      model == "toy"
          ? token_work(toy_language_model(toy), {.vocabulary = toy.vocabulary, .sequence = 8})
          : token_work(causal(bloom), {.vocabulary = bloom.vocabulary, .sequence = 8},
                       plain_bloom(bloom));
  work.trainer.schedule.peak = 1e-3;
  return work;
}

std::vector<ParityRow> data_rows(int ranks) {
  std::vector<ParityRow> rows;
  for (const std::string strategy : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    for (int accumulation : {1, 2}) {
      ParityRow row{.ranks = ranks, .accumulation = accumulation};
      row.parallel.strategy = strategy;
      rows.push_back(row);
    }
  }
  return rows;
}

// One pipeline of all ranks, and two stages on the ranks of a data axis.
std::vector<ParityRow> pipeline_rows(int ranks) {
  std::vector<ParityRow> rows;
  auto add = [&](const std::string& strategy, int stages, int micro_batches,
                 const std::string& schedule, int chunks = 1) {
    if (ranks % stages != 0) return;
    ParityRow row{.ranks = ranks, .accumulation = micro_batches, .pipeline = stages};
    row.parallel.strategy = strategy;
    row.parallel.pipeline.schedule = schedule;
    row.parallel.pipeline.chunks = chunks;
    rows.push_back(row);
  };
  add("single", ranks, 8, "1f1b");
  add("ddp", ranks, 2, "gpipe");
  for (const std::string strategy : {"zero1", "zero2", "zero3", "fsdp"}) {
    add(strategy, 2, 3, "1f1b");
    add(strategy, 2, 4, "interleaved", 2);
  }
  return rows;
}

// Stages that share embedding and head: a pipeline of all ranks, and of two on a data axis.
std::vector<ParityRow> vocabulary_rows(int ranks) {
  std::vector<ParityRow> rows;
  auto add = [&](const std::string& strategy, int stages, int micro_batches,
                 const std::string& schedule) {
    if (ranks % stages != 0) return;
    ParityRow row{.ranks = ranks, .accumulation = micro_batches, .pipeline = stages};
    row.parallel.strategy = strategy;
    row.parallel.pipeline = {.schedule = schedule, .shared_vocabulary = true};
    row.parallel.gradient_checkpointing = strategy == "zero3";
    rows.push_back(row);
  };
  if (ranks == 1) return rows;
  for (const std::string schedule : {"1f1b", "gpipe"}) {
    add("ddp", ranks, 8, schedule);
    add("zero1", ranks, 2, schedule);
    for (const std::string strategy : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
      if (ranks > 2) add(strategy, 2, 3, schedule);
    }
  }
  return rows;
}

// All ranks, or two of them with the rest on the data axis, or with two stages.
std::vector<ParityRow> tensor_rows(int ranks) {
  std::vector<ParityRow> rows;
  auto add = [&](const std::string& strategy, int stages, int tensor, bool sequence_parallel) {
    if (ranks % (stages * tensor) != 0) return;
    ParityRow row{.ranks = ranks, .accumulation = 2, .pipeline = stages, .tensor = tensor};
    row.parallel.strategy = strategy;
    row.parallel.sequence_parallel = sequence_parallel;
    rows.push_back(row);
  };
  if (ranks == 1) return rows;
  for (bool sequence_parallel : {false, true}) {
    add("single", 1, ranks, sequence_parallel);
    if (ranks == 2) continue;
    for (const std::string strategy : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
      add(strategy, 1, 2, sequence_parallel);
    }
    add("zero1", 2, 2, sequence_parallel);
  }
  return rows;
}

// Ranks that share rows: all of them, or two with the rest on the data axis.
std::vector<ParityRow> context_rows(int ranks, int64_t key_heads) {
  std::vector<ParityRow> rows;
  const auto add = [&](const std::string& strategy, int context, ContextAttention by) {
    const bool divide = key_heads % context == 0;
    if (ranks % context != 0 || (by == ContextAttention::kHeads && !divide)) return;
    ParityRow row{.ranks = ranks, .accumulation = 2, .context = context};
    row.parallel.strategy = strategy;
    row.parallel.context_attention = by;
    rows.push_back(row);
  };
  if (ranks == 1) return rows;
  for (const ContextAttention by : {ContextAttention::kHeads, ContextAttention::kKeys}) {
    add("ddp", ranks, by);
    if (ranks > 2) add("zero3", 2, by);
  }
  return rows;
}

// Ranks that own experts: all of them, or two with others that hold the same ones.
std::vector<ParityRow> expert_rows(int ranks) {
  std::vector<ParityRow> rows;
  for (const std::string strategy : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    for (const int expert : std::set{2, ranks}) {
      if (expert < 2 || ranks % expert != 0 || with_experts().experts % expert != 0) continue;
      ParityRow row{.ranks = ranks, .accumulation = 2, .expert = expert};
      row.parallel.strategy = strategy;
      rows.push_back(row);
    }
  }
  return rows;
}

// State in host memory, updated there and on the device.
std::vector<ParityRow> offload_rows(int ranks) {
  std::vector<ParityRow> rows;
  auto add = [&](const std::string& strategy, Offload what, int stages = 1, int tensor = 1) {
    if (ranks % (stages * tensor) != 0) return;
    for (auto step : {OffloadStep::kHost, OffloadStep::kDevice, OffloadStep::kBoth}) {
      ParityRow row{.ranks = ranks, .accumulation = 2, .pipeline = stages, .tensor = tensor};
      row.parallel.strategy = strategy;
      row.parallel.offload = {.what = what, .step = step, .threads = 1, .chunk_numel = 1000};
      rows.push_back(row);
    }
  };
  if (ranks == 1) add("single", Offload::kOptimizer);
  add("zero1", Offload::kOptimizer);
  add("zero2", Offload::kOptimizer);
  add("zero3", Offload::kOptimizerAndParameters);
  add("fsdp", Offload::kOptimizerAndParameters);
  if (ranks > 1) add("zero2", Offload::kOptimizer, /*stages=*/2);
  return rows;
}

// Compares the first rank's bits with every other's.
std::string difference_from_first_rank(Communicator& world, const RankRecord& record) {
  std::vector<at::Tensor> parts{
      at::tensor({record.steps.back().loss, record.steps.back().norm}, at::kFloat)};
  for (const auto& [name, value] : record.final) parts.push_back(value.flatten());
  const at::Tensor own = at::cat(parts), first = own.to(world.device(), at::kFloat, false, true);
  world.broadcast(first, 0).wait();
  return first.cpu().equal(own) ? "" : "loss, norm or parameters differ from rank 0's";
}

struct RankResult {
  std::string difference;
  double first_loss = 0, last_loss = 0;
};

RankResult run_in_16_bit(Communicator& world, const ParityRow& row, const ParityWork& work) {
  const RankRecord record = run_parity(world, row, work, /*visits=*/true);
  RankResult result{difference_from_first_rank(world, record), record.steps.front().loss,
                    record.steps.back().loss};
  if (world.rank() == 0) {
    result.difference = oracle_difference(
        row, work,
        {.ranks = {record}, .other_kernels = !world.device().is_cpu(), .rounded_additions = true});
  }
  return result;
}

RankResult run_in_fp32(Communicator& world, const ParityRow& row, const ParityWork& work,
                       const RankRecord& expected) {
  const RankRecord actual = without_key_biases(run_parity(world, row, work));
  return {difference(actual, expected, 1e-5), actual.steps.front().loss, actual.steps.back().loss};
}

// True on all ranks if the row agrees on each of them.
bool report(Communicator& world, const std::string& row, const RankResult& result) {
  at::Tensor failed = at::tensor(result.difference.empty() ? 0 : 1, at::kLong).to(world.device());
  world.all_reduce(failed).wait();
  const int64_t failures = failed.item<int64_t>();
  if (world.rank() == 0) {
    std::printf("%-4s %s over %s  loss %.6f -> %.6f\n", failures == 0 ? "PASS" : "FAIL",
                row.c_str(), world.transport().c_str(), result.first_loss, result.last_loss);
    std::fflush(stdout);
  }
  if (!result.difference.empty()) {
    std::printf("     rank %d: %s\n", world.rank(), result.difference.c_str());
  }
  return failures == 0;
}

std::vector<ParityRow> rows_of_model(const std::string& model, int ranks) {
  std::vector<ParityRow> rows;
  const auto add = [&](const std::vector<ParityRow>& more) {
    rows.insert(rows.end(), more.begin(), more.end());
  };
  if (model == "experts") return expert_rows(ranks);
  if (model.starts_with("windowed")) return context_rows(ranks, kWindowedKeyHeads);
  add(data_rows(ranks));
  add(pipeline_rows(ranks));
  if (model != "packed") add(offload_rows(ranks));
  if (model != "toy") {  // the toy has no tensor-parallel layers
    add(tensor_rows(ranks));
    add(context_rows(ranks, kBloomHeads));
  }
  if (model == "bloom") add(vocabulary_rows(ranks));
  return rows;
}

bool run_table(Communicator& world, const std::string& only) {
  bool all_equal = true;
  for (const std::string model :
       {"toy", "bloom", "packed", "windowed", "windowed packed", "experts"}) {
    const std::vector<ParityRow> rows = rows_of_model(model, world.size());
    const ParityWork work = make_work(model);
    const RankRecord expected = without_key_biases(oracle_run(work));
    ParityWork short_work = work;  // 16-bit steps are compared one by one
    short_work.global_batches.resize(2);
    for (auto dtype : {at::kFloat, at::kBFloat16}) {
      if (model == "packed" && dtype != at::kFloat) continue;
      for (ParityRow row : rows) {
        row.parallel.precision.parameter = dtype;
        row.parallel.persistence_threshold = 100;
        const std::string name = model + " " + row.name();
        if (name.find(only) == std::string::npos) continue;
        const RankResult result = dtype == at::kFloat ? run_in_fp32(world, row, work, expected)
                                                      : run_in_16_bit(world, row, short_work);
        all_equal = report(world, name, result) && all_equal;
      }
    }
  }
  return all_equal;
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  using namespace tessera;
  bool passed = false;
  const int code = run_job({.transport = argc > 1 ? argv[1] : "auto"},
                           [&](Communicator& world, const LaunchInfo&, ControlChannel&) {
                             passed = testing::run_table(world, argc > 2 ? argv[2] : "");
                           });
  return code != 0 ? code : passed ? 0 : 1;
}
