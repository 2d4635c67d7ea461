// SPDX-License-Identifier: MIT
// GPT-2, Llama and Qwen on tensor axes.
#include "tessera/model/lora.h"
#include "tessera/models/language_model.h"
#include "tests/parity/rows.h"
#include "tests/support/fused_layers.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kVocabulary = 53;
// No rank's part of the tokens starts at a row.
const TokenBatches kBatches{.vocabulary = kVocabulary, .rows = 10, .sequence = 7, .steps = 3};

const Sizes kSizes{.vocabulary = kVocabulary, .hidden = 32, .inner = 64, .initializer_range = 0.1};

DecoderConfig gpt2(double dropout) {
  return sized({.heads = 4, .max_positions = 16, .dropout = dropout}, sized("gpt2", kSizes));
}

DecoderConfig llama() {
  return sized({.heads = 8, .key_heads = 4, .head_dim = 4}, sized("llama", kSizes));
}

// An independent head size, and windows in every other layer.
DecoderConfig qwen3() {
  DecoderConfig config = sized({.heads = 8, .key_heads = 4, .head_dim = 6}, sized("qwen3", kSizes));
  config.windows = {3, 0};
  return config;
}

void check_rows(const ParityWork& work, const RankRecord& expected,
                const std::vector<std::pair<int, int>>& extents) {
  for (const std::string strategy : {"ddp", "zero3"}) {
    for (const auto& [data, tensor] : extents) {
      for (bool sequence_parallel : {false, true}) {
        ParityRow row = tensor_row(strategy, data, tensor);
        row.parallel.sequence_parallel = sequence_parallel;
        row.parallel.gradient_checkpointing = strategy == "zero3";
        check_row(row, work, expected, 1e-5);
      }
    }
  }
}

}  // namespace

TEST_CASE("GPT-2: queries, keys and values one after the other, cut alike") {
  const ParityWork work = token_work(causal(gpt2(0.0)), kBatches, plain_gpt2(gpt2(0.0)));
  check_rows(work, reference(work), {{2, 2}, {1, 4}});
  CHECK(causal(gpt2(0.0)).tensor_divisor == 4);
}

TEST_CASE("GPT-2: the same elements are dropped on every tensor axis") {
  const ParityWork work = token_work(causal(gpt2(0.2)), kBatches);
  check_rows(work, single_run(work), {{1, 2}, {1, 4}});
}

TEST_CASE("Llama: grouped queries stay with their keys") {
  const ParityWork work = token_work(causal(llama()), kBatches, plain_llama(llama()));
  check_rows(work, reference(work), {{2, 2}, {1, 4}});
  CHECK(causal(llama()).tensor_divisor == 4);  // number of key heads
}

TEST_CASE("hand-scheduled layers of GPT-2 and Llama under a tensor axis") {
  const auto check = [](const DecoderConfig& config, const RankRecord& expected) {
    check_rows(token_work(with_fused_layers(causal(config)), kBatches), expected, {{2, 2}, {1, 4}});
  };
  check(gpt2(0.0), reference(token_work(causal(gpt2(0.0)), kBatches, plain_gpt2(gpt2(0.0)))));
  check(llama(), reference(token_work(causal(llama()), kBatches, plain_llama(llama()))));
}

TEST_CASE("experts cut by their inner columns: every rank routes alike") {
  for (const std::string family : {"qwen3_moe", "mixtral", "olmoe", "qwen2_moe", "glm4_moe"}) {
    DecoderConfig config =
        sized({.heads = 8, .key_heads = 4, .head_dim = 4}, sized(family, kSizes));
    config.experts = 5, config.experts_per_token = 2, config.expert_inner = 64;
    if (family == "qwen3_moe") config.expert_inner = 24, config.dense_layers = {1};
    if (config.shared_inner > 0) config.shared_inner = 2 * config.expert_inner;
    config.query_key_value_bias = false;  // that of keys has hardly any gradient
    if (config.sigmoid_routing) config.routing_scale = 1.5;
    const ParityWork work = token_work(causal(config), kBatches, plain_llama(config));
    const RankRecord expected = reference(work);
    check_rows(work, expected, {{2, 2}, {1, 4}});
    check_rows(token_work(with_fused_layers(causal(config)), kBatches), expected, {{2, 2}, {1, 4}});
    CHECK(causal(config).tensor_divisor == 4);
    const ParityWork adapted = token_work(
        add_lora(causal(config), {.r = 2, .dropout = 0.2, .target_modules = {"all-linear"}}),
        kBatches);
    check_rows(adapted, single_run(adapted), {{1, 2}, {1, 4}});
  }
}

TEST_CASE("losses of routers are added once on a tensor axis") {
  for (const std::string family : {"qwen3_moe", "qwen2_moe"}) {
    DecoderConfig config =
        sized({.heads = 8, .key_heads = 4, .head_dim = 4}, sized(family, kSizes));
    config.experts = 5, config.experts_per_token = 2, config.expert_inner = 24;
    config.layers = 3, config.dense_layers = {1};
    config.query_key_value_bias = false;  // that of keys has hardly any gradient
    // As large as the other loss.
    config.router_aux_loss_coef = 2, config.router_z_loss_coef = 1;
    const ParityWork work = token_work(causal(config), kBatches, plain_llama(config));
    RankRecord expected = reference(work);
    const RankRecord counted = single_run(work);  // the plain model counts nothing
    for (size_t i = 0; i < expected.evaluations.size(); ++i) {
      expected.evaluations[i].counters = counted.evaluations.at(i).counters;
      CHECK(expected.evaluations[i].counters.size() == 2 + 2 * 5);
    }
    check_rows(work, expected, {{1, 2}, {1, 4}});
    check_rows(token_work(with_fused_layers(causal(config)), kBatches), expected, {{1, 2}, {1, 4}});
    config.router_aux_loss_coef = config.router_z_loss_coef = 0;
    const RankRecord without = reference(token_work(causal(config), kBatches, plain_llama(config)));
    CHECK(without.steps.back().loss < 0.8 * expected.steps.back().loss);
  }
}

TEST_CASE("Qwen3: the norms of heads are summed over the ranks that share the heads") {
  const ParityWork work = token_work(causal(qwen3()), kBatches, plain_llama(qwen3()));
  check_rows(work, reference(work), {{2, 2}, {1, 4}});
}

TEST_CASE("adapters drop the same on every tensor axis") {
  LoraRule rule{.r = 3, .alpha = 6, .dropout = 0.4, .target_modules = {"all-linear"}};
  const ParityWork work = token_work(add_lora(causal(qwen3()), rule), kBatches);
  check_rows(work, single_run(work), {{1, 2}, {1, 4}});
  rule.dropout = 0;
  const ParityWork without = token_work(add_lora(causal(qwen3()), rule), kBatches);
  CHECK(single_run(without).steps.back().loss != single_run(work).steps.back().loss);
}
