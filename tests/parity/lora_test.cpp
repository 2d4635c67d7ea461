// SPDX-License-Identifier: MIT
// Adapters in every layout: trained as on one rank, with the base unchanged bit for bit.
#include "tessera/model/lora.h"

#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tessera/model/adapters.h"
#include "tests/parity/rows.h"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;
namespace nn = torch::nn;

namespace {

LoraRule rule_of(std::vector<std::string> targets, std::vector<std::string> saved = {}) {
  LoraRule rule;
  rule.r = 3;
  rule.alpha = 12;
  rule.target_modules = std::move(targets);
  rule.modules_to_save = std::move(saved);
  return rule;
}

ModelSpec toy() { return toy_language_model({.layers = 4, .tied = false}); }

ModelSpec modules() {
  const nn::Sequential layers(nn::Embedding(31, 10), nn::Linear(10, 20), nn::Tanh(),
                              nn::Linear(20, 10), nn::Linear(10, 31));
  return from_sequential(layers.ptr(), [](const at::Tensor& scores, const MicroBatch& batch) {
    return nn::functional::cross_entropy(scores.flatten(0, 1), batch.labels.flatten(),
                                         nn::functional::CrossEntropyFuncOptions()
                                             .ignore_index(kIgnoredLabel)
                                             .reduction(torch::kSum));
  });
}

struct Case {
  const char* what;
  ModelSpec model;
};
std::vector<Case> cases() {
  return {{"every linear layer", add_lora(toy(), rule_of({"all-linear"}))},
          {"two layers, and a head in full",
           add_lora(toy(), rule_of({"layer.1.up", "layer.2.down"}, {"head"}))},
          {"torch modules", add_lora(modules(), rule_of({"all-linear"}))}};
}

ParityWork work_with(const ModelSpec& model) {
  ParityWork work = token_work(model, {.rows = 24, .steps = 4});
  work.trainer.max_grad_norm = 0.01;
  return work;
}

std::vector<ParityRow> layouts() {
  std::vector<ParityRow> rows =
      rows_of_strategies(/*persistence_threshold=*/40, /*checkpointing_in_stages=*/true);
  for (OffloadStep step : {OffloadStep::kHost, OffloadStep::kDevice, OffloadStep::kBoth}) {
    ParityRow row{.ranks = 2, .accumulation = 2};
    row.parallel.strategy = "zero3";
    row.parallel.offload = {
        .what = Offload::kOptimizerAndParameters, .step = step, .chunk_numel = 100};
    rows.push_back(row);
  }
  return rows;
}

std::map<std::string, at::Tensor> frozen_values(const ParityWork& work) {
  std::map<std::string, at::Tensor> values;
  for (const BlockBuilder& builder : work.model.blocks) {
    for (const Parameter& p : builder.build({.seed = work.seed})->parameters()) {
      if (!p.tensor.requires_grad()) values[builder.name + "." + p.name] = p.tensor.detach();
    }
  }
  return values;
}

}  // namespace

TEST_CASE("adapters train as on one rank, and the base keeps its bits") {
  for (const auto& [what, model] : cases()) {
    INFO(what);
    const ParityWork work = work_with(model);
    const auto frozen = frozen_values(work);
    REQUIRE_FALSE(frozen.empty());
    const RankRecord expected = reference(work);
    for (const ParityRow& row : layouts()) {
      INFO(row.name());
      for (const RankRecord& result : run_row(row, work)) {
        CHECK(difference(result, expected, 1e-5) == "");
        CHECK(result.steps.back().gradients.size() + frozen.size() == result.final.size());
        for (const auto& [name, value] : frozen) CHECK(result.final.at(name).equal(value));
      }
    }
  }
}

TEST_CASE("adapters have fp32 masters beside a base in 16 bits") {
  const ParityWork fp32 = work_with(cases().front().model);
  in_16_bit(fp32, 3, [](at::ScalarType dtype, const ParityWork& work) {
    for (const std::string strategy : {"zero1", "zero3", "fsdp"}) {
      ParityRow row{.ranks = 2, .accumulation = 2};
      row.parallel.strategy = strategy;
      row.parallel.precision.parameter = dtype;
      check_16_bit_row(row, work);
    }
  });
}
