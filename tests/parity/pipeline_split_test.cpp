// SPDX-License-Identifier: MIT
// Pipelines with split backward: the numbers of one rank, and the bits of 1f1b.
#include <ATen/ATen.h>

#include "tests/parity/pipeline_rows.h"
#include "tests/support/fused_layers.h"
#include "tests/support/plain_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Layers whose backward is split by zbh1.
ParityWork fused_work(const DecoderConfig& config, const TokenBatches& batches) {
  return token_work(with_fused_layers(causal(config)), batches, plain_bloom(config));
}

// Compares every rank's losses, norms and weights bit for bit.
void check_same_as_1f1b(ParityRow row, const ParityWork& work) {
  INFO(row.name());
  const auto split = run_row(row, work);
  row.parallel.pipeline.schedule = "1f1b";
  const auto whole = run_row(row, work);
  for (size_t rank = 0; rank < whole.size(); ++rank) {
    CHECK(same_numbers(split[rank], whole[rank]));
    for (const auto& [name, value] : whole[rank].final) {
      INFO(name);
      CHECK(split[rank].final.at(name).equal(value));
    }
  }
}

}  // namespace

TEST_CASE("zbh1 reproduces the single run, whether backward is split or not") {
  for (bool tied : {true, false}) {
    const TokenBatches batches{.vocabulary = 67, .steps = 3};
    const ParityWork work = fused_work(bloom_config(tied), batches), toy = toy_work(tied);
    const RankRecord expected = reference(work), expected_toy = reference(toy);
    for (const auto& strategy : kShardingStrategies) {
      check_row(make_row(strategy, 2, 1, 8, "zbh1"), work, expected);
      check_row(make_row(strategy, 2, 2, 3, "zbh1"), work, expected);
      check_row(make_row(strategy, 4, 1, 3, "zbh1"), work, expected);
      check_row(make_row(strategy, 3, 2, 4, "zbh1"), toy, expected_toy);
    }
    check_row(make_row("ddp", 2, 1, 1, "zbh1"), work, expected);
  }
}

TEST_CASE("zbh1 has the bits of 1f1b under every strategy and with every option") {
  const ParityWork work = fused_work(bloom_config(true), {.vocabulary = 67, .steps = 3});
  for (const auto& strategy : kShardingStrategies) {
    ParityRow row = make_row(strategy, 2, 2, 3, "zbh1");
    check_same_as_1f1b(row, work);
    row.parallel.save_norm_outputs = true;
    row.parallel.bucket_bytes = 1;
    row.parallel.reduce_at_boundary = true;
    check_same_as_1f1b(row, work);
    row.parallel.gradient_checkpointing = true;
    check_same_as_1f1b(row, work);
    row.parallel.overlap = false;
    check_same_as_1f1b(row, work);
    row = make_row(strategy, 4, 1, 6, "zbh1");
    row.parallel.precision.parameter = at::kBFloat16;
    check_same_as_1f1b(row, work);
    row.parallel.precision.gradient = at::kFloat;
    check_same_as_1f1b(row, work);
    if (strategy == "ddp") continue;
    row = make_row(strategy, 2, 2, 3, "zbh1");
    row.parallel.offload = {.what = Offload::kOptimizer, .pin_memory = false};
    check_same_as_1f1b(row, work);
  }
  // Layers that share a unit are not split.
  for (int64_t unit_numel : {20'000, 60'000, 1 << 30}) {
    ParityRow row = make_row("fsdp", 2, 2, 3, "zbh1");
    row.parallel.unit_numel = unit_numel;
    check_same_as_1f1b(row, work);
  }
  // Some layers of one message may defer gradients and others not.
  for (int64_t coalesce_bytes : {60'000, 1 << 30}) {
    for (const std::string strategy : {"zero1", "zero2", "zero3", "fsdp"}) {
      ParityRow row = make_row(strategy, 2, 2, 3, "zbh1");
      row.parallel.coalesce_bytes = coalesce_bytes;
      check_same_as_1f1b(row, work);
      row.parallel.overlap = false;
      check_same_as_1f1b(row, work);
    }
  }
  ParityRow hybrid = make_row("fsdp", 2, 4, 3, "zbh1");
  hybrid.parallel.shard_ranks = 2;
  check_same_as_1f1b(hybrid, work);
}

TEST_CASE("zbh1 over tensor parallelism, whole sequences or slices between stages") {
  const ParityWork work =
      fused_work(bloom_config(true), {.vocabulary = 67, .sequence = 6, .steps = 3});
  const RankRecord expected = reference(work);
  for (const std::string strategy : {"ddp", "zero2", "fsdp"}) {
    for (bool sequence_parallel : {false, true}) {
      ParityRow row = make_row(strategy, 2, strategy == "ddp" ? 1 : 2, 3, "zbh1");
      row.tensor = 2;
      row.ranks *= 2;
      row.parallel.sequence_parallel = sequence_parallel;
      check_row(row, work, expected);
      check_same_as_1f1b(row, work);
    }
  }
}

TEST_CASE("under zbh1 one rank's padding changes no rank's order of collectives") {
  ParityWork work = fused_work(bloom_config(true), {.vocabulary = 67, .steps = 2});
  for (MicroBatch& batch : work.global_batches) {
    // Only some micro-batches of the first data rank have rows padded on the left.
    const at::Tensor mask = at::ones(batch.input_ids.sizes(), at::kBool);
    mask.narrow(0, 0, 4).narrow(1, 0, 2).fill_(false);
    batch.labels.narrow(0, 0, 4).narrow(1, 0, 2).fill_(kIgnoredLabel);
    batch = rows_of(batch, 0, batch.input_ids.size(0));
    batch.attention_mask = mask;
  }
  work.batches = [&work](size_t step, const ParityRow& row, int data_rank) {
    ParityWork plain = work;
    plain.batches = {};
    std::vector<MicroBatch> batches = share_of(plain, step, row, data_rank);
    for (MicroBatch& batch : batches) {
      if (batch.attention_mask.all().item<bool>()) batch.attention_mask.reset();
    }
    return batches;
  };
  for (const auto& strategy : kShardingStrategies) {
    for (bool recompute : {false, true}) {
      ParityRow row = make_row(strategy, 2, 2, 3, "zbh1");
      row.parallel.gradient_checkpointing = recompute;
      check_same_as_1f1b(row, work);
    }
  }
}
