// SPDX-License-Identifier: MIT
// Frozen parameters in every layout: unchanged bit for bit, without gradients; the others train as
// on one rank.
#include <ATen/ATen.h>

#include "tessera/models/language_model.h"
#include "tests/parity/rows.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

using Predicate = std::function<bool(const std::string& block, const std::string& parameter)>;

// Blocks of the toy: embedding, layer.0 .. layer.3, head (tied to the embedding).
const std::pair<const char*, Predicate> kFrozen[] = {
    {"a layer in the middle", [](auto& block, auto&) { return block == "layer.1"; }},
    {"the ends", [](auto& block, auto&) { return block == "embedding" || block == "head"; }},
    {"all but one bias",
     [](auto& block, auto& parameter) { return block != "layer.2" || parameter != "up.bias"; }},
    {"matrices", [](auto&, auto& parameter) { return parameter.ends_with(".weight"); }},
};

ParityWork work_with(const Predicate& frozen) {
  ParityWork work =
      token_work(freeze(toy_language_model({.layers = 4}), frozen), {.rows = 24, .steps = 3});
  work.trainer.max_grad_norm = 0.01;  // low enough to clip every case
  return work;
}

std::map<std::string, at::Tensor> initial_values(const ParityWork& work) {
  std::map<std::string, at::Tensor> values;
  for (const auto& builder : work.model.blocks) {
    for (const Parameter& p : builder.build({.seed = work.seed})->parameters()) {
      values[builder.name + "." + p.name] = p.tensor.detach();
    }
  }
  values.erase("head.weight");
  return values;
}

std::vector<ParityRow> layouts() {
  std::vector<ParityRow> rows =
      rows_of_strategies(/*persistence_threshold=*/20, /*checkpointing_in_stages=*/true);
  for (OffloadStep step : {OffloadStep::kHost, OffloadStep::kDevice, OffloadStep::kBoth}) {
    ParityRow row{.ranks = 2, .accumulation = 2};
    row.parallel.strategy = "zero3";
    row.parallel.offload = {
        .what = Offload::kOptimizerAndParameters, .step = step, .chunk_numel = 100};
    rows.push_back(row);
    row.parallel.strategy = "zero1";
    row.parallel.offload.what = Offload::kOptimizer;
    rows.push_back(row);
  }
  ParityRow wrapped{.ranks = 4};
  wrapped.parallel.strategy = "fsdp";
  wrapped.parallel.unit_numel = 1500;
  wrapped.parallel.shard_ranks = 2;
  rows.push_back(wrapped);
  return rows;
}

}  // namespace

TEST_CASE("frozen parameters keep their bits and the others train as on one rank") {
  for (const auto& [what, frozen] : kFrozen) {
    INFO(what);
    const ParityWork work = work_with(frozen);
    const auto initial = initial_values(work);
    const RankRecord expected = reference(work);
    for (const ParityRow& row : layouts()) {
      INFO(row.name());
      for (const RankRecord& result : run_row(row, work)) {
        CHECK(difference(result, expected, 1e-5) == "");
        REQUIRE(result.final.size() == initial.size());
        for (const auto& [name, value] : initial) {
          const size_t dot = name.find('.', name.starts_with("layer.") ? 6 : 0);
          const bool is_frozen = frozen(name.substr(0, dot), name.substr(dot + 1));
          INFO(name);
          CHECK(result.steps.back().gradients.contains(name) != is_frozen);
          CHECK(result.final.at(name).equal(value) == is_frozen);
        }
      }
    }
  }
}

TEST_CASE("hand-written blocks freeze too, on a tensor axis and with shared ends") {
  const auto bloom = sized("bloom", {.vocabulary = 67, .hidden = 48, .heads = 6, .layers = 3});
  const Predicate frozen = [](const std::string& block, const std::string& parameter) {
    return block == "h.1" || block == "embedding" || parameter.ends_with("dense.weight") ||
           parameter.ends_with("layernorm.bias");
  };
  ParityWork work =
      token_work(freeze(causal(bloom), frozen), {.vocabulary = 67, .steps = 3}, plain_bloom(bloom));
  work.trainer.max_grad_norm = 0.01;
  const RankRecord expected = reference(work);
  for (const auto& [pipeline, data, tensor] :
       {std::tuple(1, 2, 1), std::tuple(1, 1, 2), std::tuple(1, 2, 3), std::tuple(2, 2, 1)}) {
    for (const char* strategy : {"zero2", "zero3"}) {
      ParityRow row{.ranks = pipeline * data * tensor,
                    .accumulation = 2,
                    .pipeline = pipeline,
                    .tensor = tensor};
      row.parallel.strategy = strategy;
      row.parallel.sequence_parallel = tensor > 1;
      row.parallel.pipeline.shared_vocabulary = pipeline > 1;
      check_row(row, work, expected, 1e-5);
    }
  }
}
