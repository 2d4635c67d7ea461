// SPDX-License-Identifier: MIT
// Rows that ranks of a context axis share: against the oracle, which runs them whole.
#include "tessera/core/micro_batch.h"
#include "tessera/model/lora.h"
#include "tessera/models/language_model.h"
#include "tests/parity/context_work.h"
#include "tests/parity/ragged_work.h"
#include "tests/support/fused_layers.h"
#include "tests/support/plain_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Fewer key heads than four ranks, an independent head size, windows in every other layer.
DecoderConfig windowed() {
  DecoderConfig config = small("qwen3", {.inner = 32, .key_heads = 2, .head_dim = 6});
  config.windows = {4, 0};
  return config;
}

struct Family {
  DecoderConfig config;
  PlainForward plain;
};

std::vector<Family> families() {
  const DecoderConfig bloom = small("bloom"), gpt2 = small("gpt2", {.max_positions = 13}),
                      llama = small("llama", {.inner = 32, .key_heads = 2, .head_dim = 6});
  return {{bloom, plain_bloom(bloom)},
          {gpt2, plain_gpt2(gpt2)},
          {llama, plain_llama(llama)},
          {windowed(), plain_llama(windowed())}};
}

}  // namespace

TEST_CASE("rows cut by keys reproduce whole rows") {
  for (const Family& family : families()) {
    INFO(family.config.model_type);
    const ParityWork work = token_work(causal(family.config), kBatches, family.plain);
    const RankRecord expected = reference(work);
    for (const int ranks : {2, 4}) {
      check_row(context_row("ddp", 1, ranks, ContextAttention::kKeys), work, expected);
    }
  }
}

TEST_CASE("rows cut by heads reproduce whole rows") {
  for (const Family& family : families()) {
    INFO(family.config.model_type);
    const ParityWork work = token_work(causal(family.config), kBatches, family.plain);
    const RankRecord expected = reference(work);
    for (const int ranks : {2, 4}) {
      if (family.config.key_head_count() % ranks != 0) continue;
      check_row(context_row("ddp", 1, ranks, ContextAttention::kHeads), work, expected);
    }
  }
}

TEST_CASE("packed rows stay apart where they are cut") {
  for (Family family : families()) {
    INFO(family.config.model_type);
    const ParityWork work =
        ragged_work(causal(family.config), family.plain, kVocabulary, RowsAre::kPacked);
    const RankRecord expected = reference(work);
    check_row(context_row("ddp", 1, 2, ContextAttention::kKeys), work, expected);
    check_row(context_row("ddp", 1, 2, ContextAttention::kHeads), work, expected);
    check_row(context_row("ddp", 1, 4, ContextAttention::kKeys), work, expected);
  }
}

TEST_CASE("every strategy shards its state over data and context ranks") {
  const Family family{windowed(), plain_llama(windowed())};
  const ParityWork plain = token_work(causal(family.config), kBatches, family.plain),
                   packed = ragged_work(causal(family.config), family.plain, kVocabulary,
                                        RowsAre::kPacked);
  for (const ParityWork* work : {&plain, &packed}) {
    const RankRecord expected = reference(*work);
    for (const std::string& strategy : kShardingStrategies) {
      ParityRow row = context_row(strategy, 2, 2, ContextAttention::kKeys);
      row.accumulation = 2;
      row.parallel.gradient_checkpointing = strategy == "zero3";
      check_row(row, *work, expected);
      row.parallel.context_attention = ContextAttention::kHeads;
      row.parallel.reduce_at_boundary = strategy == "zero2" || strategy == "fsdp";
      check_row(row, *work, expected);
    }
    ParityRow offloaded = context_row("zero3", 2, 2, ContextAttention::kAuto);
    offloaded.parallel.offload = {.what = Offload::kOptimizerAndParameters,
                                  .step = OffloadStep::kHost};
    check_row(offloaded, *work, expected);
    ParityRow hybrid = context_row("fsdp", 2, 2, ContextAttention::kAuto);
    hybrid.parallel.shard_ranks = 2;
    check_row(hybrid, *work, expected);
  }
}

TEST_CASE("a context axis beside a tensor axis reproduces whole rows") {
  for (const Family& family : families()) {
    INFO(family.config.model_type);
    const ParityWork work = token_work(causal(family.config), kBatches, family.plain);
    const RankRecord expected = reference(work);
    for (const bool sequence_parallel : {false, true}) {
      ParityRow row = context_row("zero2", 1, 2, ContextAttention::kKeys);
      row.ranks = 4;
      row.tensor = 2;
      row.parallel.sequence_parallel = sequence_parallel;
      check_row(row, work, expected);
      if (family.config.key_head_count() % 4 != 0) continue;
      row.parallel.context_attention = ContextAttention::kHeads;
      check_row(row, work, expected);
    }
  }
}

TEST_CASE("stages of a pipeline pass on cut rows") {
  for (const Family& family : families()) {
    INFO(family.config.model_type);
    const ParityWork plain = token_work(causal(family.config), kBatches, family.plain),
                     packed = ragged_work(causal(family.config), family.plain, kVocabulary,
                                          RowsAre::kPacked);
    for (const ParityWork* work : {&plain, &packed}) {
      const RankRecord expected = reference(*work);
      ParityRow row = context_row("zero1", 1, 2, ContextAttention::kKeys);
      row.ranks = 4;
      row.pipeline = 2;
      row.accumulation = 2;
      check_row(row, *work, expected);
      row.parallel.pipeline = {.schedule = "gpipe", .shared_vocabulary = true};
      row.parallel.context_attention = ContextAttention::kHeads;
      check_row(row, *work, expected);
      row.parallel.pipeline = {.schedule = "interleaved", .chunks = 2};
      check_row(row, *work, expected);
    }
  }
}

TEST_CASE("adapters train on cut rows as on whole ones") {
  const LoraRule rule{.r = 3, .alpha = 6, .target_modules = {"all-linear"}};
  const ParityWork work = token_work(add_lora(causal(windowed()), rule), kBatches);
  const RankRecord expected = single_run(work);
  check_row(context_row("zero3", 1, 2, ContextAttention::kKeys), work, expected);
  check_row(context_row("ddp", 2, 2, ContextAttention::kHeads), work, expected);
}

TEST_CASE("padded rows keep their mask where they are cut") {
  for (const DecoderConfig& config :
       {small("llama", {.inner = 32, .key_heads = 2, .head_dim = 6}), small("bloom")}) {
    INFO(config.model_type);
    for (const RowsAre rows : {RowsAre::kPadded, RowsAre::kPaddedLeft}) {
      const ParityWork work = ragged_work(causal(config), {}, kVocabulary, rows);
      const RankRecord expected = single_run(work);
      check_row(context_row("ddp", 1, 2, ContextAttention::kKeys), work, expected);
      check_row(context_row("zero1", 2, 2, ContextAttention::kHeads), work, expected);
    }
  }
}

TEST_CASE("cut rows in bf16 stay within the roundings of each step") {
  for (const Family& family : families()) {
    INFO(family.config.model_type);
    const ParityWork work = token_work(causal(family.config), kBatches, family.plain);
    for (const ContextAttention by : {ContextAttention::kKeys, ContextAttention::kHeads}) {
      ParityRow row = context_row("zero2", 1, 2, by);
      row.parallel.precision.parameter = at::kBFloat16;
      check_16_bit_row(row, work);
    }
  }
}

TEST_CASE("micro-batches without rows, and pieces without targets, add nothing") {
  const Family family{windowed(), plain_llama(windowed())};
  ParityWork work = token_work(causal(family.config), kBatches, family.plain);
  // All targets are in the first piece of the last rank's micro-batch.
  for (MicroBatch& batch : work.global_batches) {
    batch.labels.narrow(1, 2, batch.labels.size(1) - 2).fill_(kIgnoredLabel);
    batch = rows_of(batch, 0, batch.input_ids.size(0));
  }
  const RankRecord expected = reference(work);
  work.batches = [global = work.global_batches](size_t step, const ParityRow& row, int data_rank) {
    const bool all = data_rank + 1 == row.data();
    return std::vector<MicroBatch>{
        rows_of(global[step], 0, all ? global[step].input_ids.size(0) : 0)};
  };
  for (const ContextAttention by : {ContextAttention::kKeys, ContextAttention::kHeads}) {
    check_row(context_row("ddp", 2, 2, by), work, expected);
    check_row(context_row("zero3", 2, 2, by), work, expected);
  }
}

TEST_CASE("the head of cut rows runs for targets only, and finds all of them") {
  const Family family{windowed(), plain_llama(windowed())};
  ParityWork work = token_work(causal(family.config), kBatches, family.plain);
  for (MicroBatch& batch : work.global_batches) {
    // One target a row, at another column of each.
    const at::Tensor columns = at::arange(batch.labels.size(0)).unsqueeze(1).mul(5).remainder(13);
    batch.labels = batch.labels.masked_fill(at::arange(13).ne(columns), kIgnoredLabel);
    batch = rows_of(batch, 0, batch.input_ids.size(0));
  }
  const RankRecord expected = reference(work);
  work.batches = [global = work.global_batches](size_t step, const ParityRow& row, int data_rank) {
    const int64_t share = global[step].input_ids.size(0) / row.data();
    MicroBatch batch = rows_of(global[step], data_rank * share, share);
    choose_head_positions(batch, 1);
    return std::vector<MicroBatch>{std::move(batch)};
  };
  for (const int ranks : {2, 4}) {
    check_row(context_row("ddp", 1, ranks, ContextAttention::kKeys), work, expected);
    check_row(context_row("zero3", 2, ranks, ContextAttention::kKeys), work, expected);
  }
}

TEST_CASE("classifiers pool a row's last token on the rank that has it") {
  for (DecoderConfig config : {small("bloom"), windowed()}) {
    INFO(config.model_type);
    config.pad_token = 0;
    const auto make = [&](RowsAre rows) {
      return ragged_work(classifier(config, 3), {}, kVocabulary, rows, /*classes=*/3);
    };
    for (const RowsAre rows : {RowsAre::kPacked, RowsAre::kPadded, RowsAre::kPaddedLeft}) {
      const ParityWork work = make(rows);
      const RankRecord expected = single_run(work);
      check_row(context_row("ddp", 1, 2, ContextAttention::kHeads), work, expected, 2e-5);
      check_row(context_row("ddp", 1, 4, ContextAttention::kKeys), work, expected, 2e-5);
      check_row(context_row("zero3", 2, 2, ContextAttention::kKeys), work, expected, 2e-5);
      ParityRow row = context_row("zero1", 1, 2, ContextAttention::kKeys);
      row.ranks = 4;
      row.tensor = 2;
      row.parallel.sequence_parallel = true;
      check_row(row, work, expected, 2e-5);
      row.tensor = 1, row.parallel.sequence_parallel = false;
      row.pipeline = 2, row.accumulation = 2;
      check_row(row, work, expected, 2e-5);
    }
  }
}

TEST_CASE("fused layers of cut rows, their attention differentiated by autograd") {
  for (const Family& family : families()) {
    INFO(family.config.model_type);
    const ModelSpec fused = with_fused_layers(causal(family.config));
    const ParityWork plain = token_work(fused, kBatches, family.plain),
                     packed = ragged_work(fused, family.plain, kVocabulary, RowsAre::kPacked);
    for (const ParityWork* work : {&plain, &packed}) {
      const RankRecord expected = reference(*work);
      for (const ContextAttention by : {ContextAttention::kKeys, ContextAttention::kHeads}) {
        ParityRow row = context_row("zero2", 2, 2, by);
        check_row(row, *work, expected);
        row.parallel.strategy = "zero3";
        row.parallel.gradient_checkpointing = true;
        check_row(row, *work, expected);
        row = context_row("ddp", 1, 2, by);
        row.ranks = 4;
        row.tensor = 2;
        row.parallel.sequence_parallel = true;
        if (by == ContextAttention::kKeys) check_row(row, *work, expected);
        row.tensor = 1, row.parallel.sequence_parallel = false;
        row.pipeline = 2, row.accumulation = 2;
        check_row(row, *work, expected);
      }
    }
  }
}
