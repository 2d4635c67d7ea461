// SPDX-License-Identifier: MIT
// Products in 8 bits under every layout, against one rank with the same micro-batches, and against
// the oracle.
#include "tessera/model/lora.h"
#include "tessera/models/language_model.h"
#include "tests/parity/rows.h"
#include "tests/support/fused_layers.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kVocabulary = 37;
constexpr Fp8 kScalings[] = {Fp8::kTensorwise, Fp8::kRowwise};

DecoderConfig small(const std::string& family) {
  Sizes sizes{.vocabulary = kVocabulary,
              .hidden = 24,
              .heads = 4,
              .layers = 3,
              .initializer_range = 0.1,
              .dropout = 0};
  if (family == "llama") sizes.inner = 40, sizes.key_heads = 2, sizes.head_dim = 6;
  if (family == "gpt2") sizes.max_positions = 13;
  return sized(sizes, LanguageModel::defaults(family));
}

// Without clipping, whose norm has another order of sums in every layout.
ParityWork work_of(const ModelSpec& model) {
  ParityWork work = token_work(model, {.vocabulary = kVocabulary, .rows = 4, .sequence = 13});
  work.trainer.max_grad_norm = 0;
  return work;
}

// Two micro-batches in all: their gradients' sum has one order.
ParityRow row_of(const std::string& strategy, int data, Fp8 scaling) {
  ParityRow row{.ranks = data, .accumulation = 2 / data};
  row.parallel.strategy = strategy;
  row.parallel.precision.fp8 = scaling;
  if (strategy == "zero3") row.parallel.persistence_threshold = 100;
  return row;
}

RankRecord one_rank(const ParityWork& work, Fp8 scaling) {
  return run_row(row_of("single", 1, scaling), work).front();
}

// Gradients differ in their last bit where a product adds to what other micro-batches left. That is
// 1e-7 of a parameter; one other code in any product would be 1e-4.
void check_same(const ParityRow& row, const ParityWork& work, const RankRecord& expected) {
  constexpr double kTolerance = 1e-6;
  INFO(row.name());
  for (const RankRecord& result : run_row(row, work)) {
    CHECK(difference(series(result, &StepRecord::loss), series(expected, &StepRecord::loss),
                     kTolerance) == "");
    CHECK(difference(result.final, expected.final, kTolerance) == "");
  }
}

}  // namespace

TEST_CASE("steps in 8 bits are other steps, and not far from those in the compute dtype") {
  for (const std::string family : {"bloom", "gpt2", "llama"}) {
    const ParityWork work = work_of(causal(small(family)));
    const RankRecord exact = one_rank(work, Fp8::kOff);
    for (const Fp8 scaling : kScalings) {
      INFO(family << " scaling " << int(scaling));
      const RankRecord result = one_rank(work, scaling);
      CHECK(difference(result, exact, 1e-5) != "");
      CHECK(difference(series(result, &StepRecord::loss), series(exact, &StepRecord::loss), 0.02) ==
            "");
      // Evaluations are in the compute dtype, of weights that differ.
      CHECK(difference({result.evaluations.back().loss}, {exact.evaluations.back().loss}, 0.02) ==
            "");
    }
  }
}

TEST_CASE("8-bit products that stay whole have one rank's codes under every strategy") {
  for (const std::string family : {"bloom", "llama"}) {
    for (const bool fused : {false, true}) {
      const ModelSpec model = causal(small(family));
      const ParityWork work = work_of(fused ? with_fused_layers(model) : model);
      for (const Fp8 scaling : kScalings) {
        INFO(family << " fused " << fused << " scaling " << int(scaling));
        const RankRecord expected = one_rank(work, scaling);
        for (const std::string& strategy : kShardingStrategies) {
          check_same(row_of(strategy, 2, scaling), work, expected);
        }
        ParityRow alone = row_of("single", 1, scaling);
        alone.parallel.gradient_checkpointing = true;
        check_same(alone, work, expected);
        ParityRow kept = row_of("fsdp", 2, scaling);
        kept.parallel.reshard_after_forward = false;
        check_same(kept, work, expected);
        const auto some = [&](ParityRow row) {
          row.parallel.precision.fp8_layers = "o,up";
          return row;
        };
        const RankRecord of_some = run_row(some(row_of("single", 1, scaling)), work).front();
        CHECK(difference(of_some, expected, 1e-5) != "");
        check_same(some(row_of("zero3", 2, scaling)), work, of_some);
        alone.parallel.save_norm_outputs = !(alone.parallel.gradient_checkpointing = !fused);
        check_same(some(alone), work, of_some);
      }
    }
  }
}

// Every step apart, against numbers that tests/support/plain_fp8.cpp rounds.
TEST_CASE("steps in 8 bits are those of an oracle that rounds by itself") {
  const auto plain = [](const DecoderConfig& config) {
    return config.model_type == "bloom"  ? plain_bloom(config)
           : config.model_type == "gpt2" ? plain_gpt2(config)
                                         : plain_llama(config);
  };
  for (const std::string family : {"bloom", "gpt2", "llama"}) {
    for (const bool fused : {false, true}) {
      const ModelSpec model = causal(small(family));
      ParityWork work = work_of(fused ? with_fused_layers(model) : model);
      work.forward = plain(small(family));
      work.global_batches.resize(2);
      for (const Fp8 scaling : kScalings) {
        const auto check = [&](const ParityRow& row) {
          INFO(family << " fused " << fused << " scaling " << int(scaling) << " " << row.name());
          CHECK(oracle_difference(row, work,
                                  {.ranks = run_on_threads(row, work, /*visits=*/true)}) == "");
        };
        check(row_of("single", 1, scaling));
        ParityRow half = row_of("zero1", 2, scaling);
        half.parallel.precision.parameter = at::kBFloat16;
        check(half);
        for (const bool sequence_parallel : {false, true}) {
          ParityRow shared = row_of("single", 1, scaling);
          shared.ranks = shared.tensor = 2;
          shared.parallel.sequence_parallel = sequence_parallel;
          check(shared);
        }
      }
    }
  }
}

TEST_CASE("a frozen base in 8 bits: adapters train alike under every strategy") {
  for (const std::string family : {"bloom", "llama"}) {
    for (const bool fused : {false, true}) {
      ModelSpec model = causal(small(family));
      if (fused) model = with_fused_layers(model);
      const ParityWork work =
          work_of(add_lora(model, {.r = 2, .alpha = 8, .target_modules = {"all-linear"}}));
      for (const Fp8 scaling : kScalings) {
        INFO(family << " fused " << fused << " scaling " << int(scaling));
        const RankRecord expected = one_rank(work, scaling);
        CHECK(difference(expected, one_rank(work, Fp8::kOff), 1e-5) != "");
        for (const std::string& strategy : kShardingStrategies) {
          check_same(row_of(strategy, 2, scaling), work, expected);
        }
      }
    }
  }
}

TEST_CASE("a frozen base that is stored in 8 bits: adapters train alike in every layout") {
  for (const std::string family : {"gpt2", "llama"}) {
    for (const bool fused : {false, true}) {
      ModelSpec model = causal(small(family));
      if (fused) model = with_fused_layers(model);
      const ParityWork work =
          work_of(add_lora(model, {.r = 2, .alpha = 8, .target_modules = {"all-linear"}}));
      for (const Fp8 scaling : {Fp8::kOff, Fp8::kTensorwise, Fp8::kRowwise}) {
        if (scaling == Fp8::kRowwise && (fused || family == "llama")) continue;
        INFO(family << " fused " << fused << " scaling " << int(scaling));
        const auto stored = [&](ParityRow row) {
          row.parallel.precision.frozen = FrozenDtype::kFp8;
          return row;
        };
        const RankRecord expected = run_row(stored(row_of("single", 1, scaling)), work).front();
        CHECK(difference(expected, one_rank(work, scaling), 1e-5) != "");
        for (const std::string& strategy : kShardingStrategies) {
          check_same(stored(row_of(strategy, 2, scaling)), work, expected);
        }
        ParityRow again = stored(row_of("zero3", 2, scaling));
        again.parallel.gradient_checkpointing = true;
        check_same(again, work, expected);
        if (scaling == Fp8::kTensorwise) {
          const auto some = [&](ParityRow row) {
            row.parallel.precision.fp8_layers = "qkv,down";
            return stored(row);
          };
          const RankRecord of_some = run_row(some(row_of("single", 1, scaling)), work).front();
          CHECK(difference(of_some, expected, 1e-5) != "");
          for (const std::string& strategy : kShardingStrategies) {
            check_same(some(row_of(strategy, 2, scaling)), work, of_some);
          }
        }
        ParityRow kept = stored(row_of("fsdp", 2, scaling));
        kept.parallel.reshard_after_forward = false;
        check_same(kept, work, expected);
        for (const std::string strategy : {"single", "zero3"}) {
          const int data = strategy == "single" ? 1 : 2;
          ParityRow row = stored(row_of(strategy, data, scaling));
          row.ranks = 2 * data, row.pipeline = 2;
          check_same(row, work, expected);
        }
      }
    }
  }
}

// Products in the compute dtype of stored codes are those of a model whose frozen weights have the
// codes' values, bit for bit.
TEST_CASE("a frozen base that is stored in 8 bits computes what its decoded values do") {
  for (const std::string family : {"bloom", "gpt2", "llama"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const LoraRule rule{.r = 2, .alpha = 8, .target_modules = {"all-linear"}};
      ParityWork work = work_of(add_lora(causal(small(family)), rule));
      ParityRow row = row_of("single", 1, Fp8::kOff);
      row.parallel.precision.parameter = dtype;
      row.parallel.precision.frozen = FrozenDtype::kFp8;
      const RankRecord stored = run_row(row, work).front();
      for (BlockBuilder& builder : work.model.blocks) {
        builder.build = [build = builder.build, name = builder.name,
                         &stored](const BuildContext& context) {
          std::unique_ptr<Block> block = build(context);
          for (const Parameter& p : block->parameters()) {
            if (p.tensor.requires_grad()) continue;
            const auto value = stored.final.find(name + "." + p.name);
            if (value != stored.final.end()) p.tensor.detach().copy_(value->second);
          }
          return block;
        };
      }
      row.parallel.precision.frozen = FrozenDtype::kSame;
      const RankRecord decoded = run_row(row, work).front();
      INFO(family << " " << dtype);
      CHECK(same_numbers(stored, decoded));
      for (const auto& [name, value] : stored.final) CHECK(value.equal(decoded.final.at(name)));
    }
  }
}

TEST_CASE("tensor ranks have one scale for the parts of a frozen matrix in 8 bits") {
  const ParityWork work = work_of(
      add_lora(causal(small("llama")), {.r = 2, .alpha = 8, .target_modules = {"all-linear"}}));
  for (const Fp8 scaling : {Fp8::kOff, Fp8::kTensorwise}) {
    ParityRow row = row_of("single", 1, scaling);
    row.parallel.precision.frozen = FrozenDtype::kFp8;
    const RankRecord expected = run_row(row, work).front();
    for (const bool sequence_parallel : {false, true}) {
      ParityRow shared = row;
      shared.ranks = shared.tensor = 2;
      shared.parallel.sequence_parallel = sequence_parallel;
      INFO(shared.name() << " scaling " << int(scaling));
      for (const RankRecord& result : run_row(shared, work)) {
        for (const auto& [name, value] : result.final) {
          if (name.ends_with("proj.weight")) CHECK(value.equal(expected.final.at(name)));
        }
        // Sums in another order may move a number to the next code.
        CHECK(difference(series(result, &StepRecord::loss), series(expected, &StepRecord::loss),
                         scaling == Fp8::kOff ? 1e-5 : 1e-3) == "");
      }
    }
  }
}

TEST_CASE("stages of a pipeline multiply in 8 bits as one rank does") {
  for (const bool fused : {false, true}) {
    const ModelSpec model = causal(small("llama"));
    const ParityWork work = work_of(fused ? with_fused_layers(model) : model);
    for (const Fp8 scaling : kScalings) {
      const RankRecord expected = one_rank(work, scaling);
      for (const std::string schedule : {"1f1b", "gpipe", "zbh1", "interleaved"}) {
        for (const std::string strategy : {"single", "zero3"}) {
          const int data = strategy == "single" ? 1 : 2;
          ParityRow row = row_of(strategy, data, scaling);
          row.ranks = 2 * data, row.pipeline = 2;
          row.parallel.pipeline.schedule = schedule;
          row.parallel.pipeline.chunks = schedule == "interleaved" ? 2 : 1;
          if (schedule == "interleaved" && data == 2) continue;  // one micro-batch
          check_same(row, work, expected);
        }
      }
    }
  }
}
