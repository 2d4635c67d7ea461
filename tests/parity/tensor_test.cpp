// SPDX-License-Identifier: MIT
// Parity of tensor-parallel layouts with one rank, alone and around every sharding strategy.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tessera/model/whole_model.h"
#include "tessera/models/language_model.h"
#include "tests/parity/rows.h"
#include "tests/support/fused_layers.h"
#include "tests/support/plain_models.h"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kTokenCount = 67;  // not divisible by 2, 3 or 4
constexpr int64_t kSequence = 7;
const TokenBatches kTensorBatches{.vocabulary = kTokenCount, .rows = 8, .sequence = kSequence};

DecoderConfig bloom(bool tied = true) {
  auto config = sized("bloom", {.vocabulary = kTokenCount,
                                .hidden = 48,
                                // Not a power of two, so that slopes come from two series.
                                .heads = 12,
                                .layers = 2,
                                .initializer_range = 0.1});
  config.tied_head = tied;
  return config;
}

ParityWork causal_work(bool tied = true) {
  return token_work(causal(bloom(tied)), kTensorBatches, plain_bloom(bloom(tied)));
}

ParityWork classification_work() {
  ParityWork work = token_work(classifier(bloom(), 3), kTensorBatches);
  for (auto& batch : work.global_batches) {
    batch.labels = batch.input_ids.select(1, 0).remainder(3);
    batch.input_ids.narrow(0, 0, 3).narrow(1, 4, 3).fill_(3);  // padding
    batch = rows_of(batch, 0, 8);
  }
  return work;
}

}  // namespace

TEST_CASE("fp32: tensor x data ranks x strategies, with and without sequence parallelism") {
  for (bool tied : {true, false}) {
    const ParityWork work = causal_work(tied);
    const RankRecord expected = reference(work);
    for (const auto& strategy : tied ? kShardingStrategies : std::vector<std::string>{"zero3"}) {
      for (const auto& [data, tensor] : {std::pair(1, 3), {1, 4}, {2, 2}}) {
        for (bool sequence_parallel : {false, true}) {
          ParityRow row = tensor_row(strategy, data, tensor);
          row.accumulation = tensor == 2 ? 2 : 1;
          row.parallel.sequence_parallel = sequence_parallel;
          check_row(row, work, expected, 1e-5);
        }
      }
    }
  }
}

TEST_CASE("gradient checkpointing sums activations again, to the same numbers") {
  const ParityWork work = causal_work();
  const RankRecord expected = reference(work);
  for (const std::string strategy : {"ddp", "zero3", "fsdp"}) {
    for (bool sequence_parallel : {false, true}) {
      ParityRow row = tensor_row(strategy, 2, 2);
      row.accumulation = 2;
      row.parallel.gradient_checkpointing = true;
      row.parallel.sequence_parallel = sequence_parallel;
      check_row(row, work, expected, 1e-5);
    }
  }
}

TEST_CASE("hand-scheduled layers sum over the ranks of a tensor axis") {
  const RankRecord expected = reference(causal_work());
  const ParityWork work = token_work(with_fused_layers(causal(bloom())), kTensorBatches);
  for (const std::string strategy : {"ddp", "zero3"}) {
    for (bool checkpointing : {false, true}) {
      for (const auto& [pipeline, tensor] : {std::pair(1, 3), {1, 2}, {2, 2}}) {
        ParityRow row = tensor_row(strategy, 1, tensor);
        row.ranks = pipeline * tensor;
        row.pipeline = pipeline;
        row.accumulation = 2;
        row.parallel.gradient_checkpointing = checkpointing;
        check_row(row, work, expected, 1e-5);
      }
    }
  }
}

TEST_CASE("pipeline x data x tensor, tied tables cut over both outer axes") {
  for (bool tied : {true, false}) {
    const ParityWork work = causal_work(tied);
    const RankRecord expected = reference(work);
    for (const std::string strategy : {"ddp", "zero1", "fsdp"}) {
      for (bool sequence_parallel : {false, true}) {
        ParityRow row = tensor_row(strategy, 2, 2);
        row.ranks = 8;
        row.pipeline = 2;
        row.accumulation = 2;
        row.parallel.sequence_parallel = sequence_parallel;
        check_row(row, work, expected, 1e-5);
      }
    }
  }
}

TEST_CASE("bf16, and fp16 with a loss scale: within the noise of every step") {
  in_16_bit(causal_work(), 2, [](at::ScalarType dtype, const ParityWork& work) {
    for (const std::string strategy : {"ddp", "zero2", "fsdp"}) {
      for (bool sequence_parallel : {false, true}) {
        ParityRow row = tensor_row(strategy, 2, 2);
        row.parallel.precision.parameter = dtype;
        row.parallel.precision.gradient = at::kFloat;
        row.parallel.sequence_parallel = sequence_parallel;
        check_16_bit_row(row, work);
      }
    }
  });
}

TEST_CASE("padding on the left, and a residual after the norms") {
  DecoderConfig config = bloom();
  config.residual_post_layernorm = true;
  for (bool post : {false, true}) {
    config.residual_post_layernorm = post;
    ParityWork work = token_work(causal(config), kTensorBatches);
    for (auto& batch : work.global_batches) {
      batch.attention_mask = at::ones({8, kSequence}, at::kBool);
      batch.attention_mask.narrow(0, 2, 3).narrow(1, 0, 3).fill_(false);
    }
    const RankRecord expected = single_run(work);
    for (bool sequence_parallel : {false, true}) {
      ParityRow row = tensor_row("zero3", 2, 3);
      row.parallel.sequence_parallel = sequence_parallel;
      check_row(row, work, expected, 1e-5);
    }
  }
}

TEST_CASE("classification: loss, correct predictions and gradients") {
  const ParityWork work = classification_work();
  const RankRecord expected = single_run(work);
  REQUIRE(expected.evaluations.back().counters.size() == 1);
  for (const std::string strategy : {"ddp", "zero1", "fsdp"}) {
    for (const auto& [data, tensor] : {std::pair(1, 4), {2, 2}}) {
      for (bool sequence_parallel : {false, true}) {
        ParityRow row = tensor_row(strategy, data, tensor);
        row.parallel.sequence_parallel = sequence_parallel;
        row.accumulation = tensor == 2 ? 2 : 1;
        check_row(row, work, expected, 1e-5);
      }
    }
  }
}

TEST_CASE("logits of a model shared by ranks are those of the whole one") {
  const MicroBatch batch = toy_micro_batch({.vocabulary = kTokenCount}, 2, kSequence, 5);
  for (const ModelSpec& model : {causal(bloom()), classifier(bloom(), 3)}) {
    const at::Tensor expected = WholeModel(model, {.seed = 3}).logits(batch).detach();
    for (int ranks : {2, 3, 4}) {
      for (bool sequence_parallel : {false, true}) {
        test::run_ranks(ranks, [&](Communicator& comm) {
          const at::NoGradGuard no_grad;
          WholeModel shared(model,
                            {.seed = 3, .tensor = &comm, .sequence_parallel = sequence_parallel});
          const at::Tensor logits = shared.logits(batch);
          test::require(logits.sizes() == expected.sizes(), "shape ", logits.sizes());
          test::require(at::allclose(logits, expected, 1e-4, 1e-5), ranks, " ranks differ");
        });
      }
    }
  }
}
