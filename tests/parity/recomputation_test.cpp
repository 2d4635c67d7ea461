// SPDX-License-Identifier: MIT
// The choice of recomputed blocks does not change numbers.
#include "tessera/core/error.h"
#include "tessera/models/language_model.h"
#include "tests/parity/rows.h"
#include "tests/support/fused_layers.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kLayers = 6;

ParityWork work_of(double dropout) {
  const Sizes sizes{.vocabulary = 68,
                    .hidden = 24,
                    .heads = 4,
                    .layers = kLayers,
                    .initializer_range = 0.1,
                    .dropout = dropout};
  const DecoderConfig config = sized("bloom", sizes);
  return token_work(causal(config), {.vocabulary = 68, .rows = 8, .steps = 3}, plain_bloom(config));
}

std::vector<ParityRow> rows() {
  std::vector<ParityRow> all;
  const auto add = [&](const std::string& strategy, const ParityRow& shape) -> ParallelConfig& {
    all.push_back(shape);
    all.back().parallel.strategy = strategy;
    if (strategy == "zero3") all.back().parallel.persistence_threshold = 100;
    return all.back().parallel;
  };
  add("single", {.accumulation = 2});
  add("single", {.accumulation = 2}).save_norm_outputs = true;
  for (const std::string strategy : {"ddp", "zero3", "fsdp"}) {
    add(strategy, {.ranks = 2, .accumulation = 2});
    add(strategy, {.ranks = 4, .accumulation = 2, .pipeline = 2});
    add(strategy, {.ranks = 2, .tensor = 2});
  }
  for (const std::string schedule : {"gpipe", "interleaved"}) {
    add("single", {.ranks = 2, .accumulation = 4, .pipeline = 2}).pipeline = {
        .schedule = schedule, .chunks = schedule == "interleaved" ? 2 : 1};
  }
  add("single", {.ranks = 2, .accumulation = 4, .pipeline = 2}).pipeline.shared_vocabulary = true;
  add("ddp", {.ranks = 2, .tensor = 2}).sequence_parallel = true;
  add("zero3", {.ranks = 2}).offload.what = Offload::kOptimizerAndParameters;
  return all;
}

}  // namespace

TEST_CASE("blocks that run again give the same bits as those that stay") {
  const ParityWork work = work_of(/*dropout=*/0.2);
  for (ParityRow row : rows()) {
    const std::vector<RankRecord> expected = run_row(row, work);
    for (const std::vector<int64_t>& blocks :
         {std::vector<int64_t>{1, 2}, {4, 6}, {0, 1, 2, 3, 4, 5, 6}}) {
      row.parallel.recomputed_blocks = blocks;
      INFO(row.name() << ", from block " << blocks.front());
      const std::vector<RankRecord> results = run_row(row, work);
      for (size_t rank = 0; rank < results.size(); ++rank) {
        CHECK(difference(results[rank], expected[rank], 0) == "");
        CHECK(same_numbers(results[rank], expected[rank]));
      }
    }
  }
}

TEST_CASE("blocks that run again give the numbers of one rank") {
  const ParityWork work = work_of(0);
  const RankRecord expected = reference(work);
  for (ParityRow row : rows()) {
    row.parallel.recomputed_blocks = {1, 2, 5};
    check_row(row, work, expected);
  }
}

TEST_CASE("offloaded activations give the same bits as recomputation") {
  const Sizes sizes{.vocabulary = 68,
                    .hidden = 24,
                    .heads = 4,
                    .layers = kLayers,
                    .inner = 40,
                    .key_heads = 4,
                    .head_dim = 6,
                    .initializer_range = 0.1,
                    .dropout = 0.2};
  const TokenBatches batches{.vocabulary = 68, .rows = 8, .steps = 3};
  for (const char* const family : {"llama", "gpt2"}) {
    Sizes given = sizes;
    given.max_positions = 16;
    const ParityWork work = token_work(with_fused_layers(causal(sized(family, given))), batches);
    for (ParityRow row : rows()) {
      row.parallel.recomputed_blocks = {1, 2, 4, 6};
      const std::vector<RankRecord> expected = run_row(row, work);
      for (const bool offload : {true, false}) {
        if (!offload && row.ranks > 2) continue;
        ParityRow other = row;
        other.parallel.save_attention_outputs = !offload;
        other.parallel.offload.activations = offload;
        INFO(family << " " << other.name());
        const std::vector<RankRecord> results = run_row(other, work);
        for (size_t rank = 0; rank < results.size(); ++rank) {
          CHECK(difference(results[rank], expected[rank], 0) == "");
          CHECK(same_numbers(results[rank], expected[rank]));
        }
      }
    }
  }
}

TEST_CASE("places that are no blocks are refused, and so is the loss") {
  const ParityWork work = work_of(0);
  const auto refused = [&](const std::vector<int64_t>& blocks, int stages) {
    ParityRow row{.ranks = stages, .pipeline = stages};
    row.parallel.recomputed_blocks = blocks;
    try {
      run_row(row, work);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const int stages : {1, 2}) {
    const auto last = static_cast<int64_t>(work.model.block_count()) - 1;
    CHECK(refused({last - 1}, stages).empty());
    CHECK(refused({last}, stages).find("before its loss") != std::string::npos);
    CHECK(refused({1, 1}, stages).find("increasing order") != std::string::npos);
    CHECK(refused({2, 1}, stages).find("increasing order") != std::string::npos);
    CHECK(refused({-1}, stages).find("increasing order") != std::string::npos);
  }
}
