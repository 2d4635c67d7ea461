// Parameter groups and decay rules under every layout: as on one rank.
#include "tessera/model/parameter_groups.h"
#include "tessera/models/language_model.h"
#include "tests/parity/rows.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

ParameterGroup group(const std::string& part, double lr_factor) {
  return {.name = part, .matches = named(part), .lr_factor = lr_factor};
}

// The toy's blocks: embedding, layer.0 .. layer.3, head (its weight tied to the embedding's).
ModelSpec grouped_toy() {
  ParameterGroup decaying = group("layer.1", 1);
  decaying.weight_decay = 0.5;
  ParameterGroup slow = group("up.bias", 0.25);
  slow.matches = [](const std::string& block, const std::string& parameter, at::IntArrayRef) {
    return parameter == "up.bias" && block != "layer.1";
  };
  slow.betas = std::pair(0.5, 0.9);
  ParameterGroup still = group("layer.2.down.weight", 1);
  still.frozen = true;
  return with_groups(with_decay(toy_language_model({.layers = 4}), DecayRule::kAll),
                     {decaying, slow, group("embedding", 4), still});
}

std::vector<ParityRow> layouts() {
  std::vector<ParityRow> rows;
  for (const char* strategy : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    ParityRow row{.ranks = 2, .accumulation = 2};
    row.parallel.strategy = strategy;
    row.parallel.persistence_threshold = 20;
    rows.push_back(row);
    row.ranks = 4;
    row.pipeline = 2;
    rows.push_back(row);
  }
  for (OffloadStep step : {OffloadStep::kHost, OffloadStep::kDevice}) {
    for (Offload what : {Offload::kOptimizer, Offload::kOptimizerAndParameters}) {
      ParityRow row{.ranks = 2, .accumulation = 2};
      row.parallel.strategy = "zero3";
      row.parallel.offload = {.what = what, .step = step, .chunk_numel = 100};
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace

TEST_CASE("groups with rates, decays and betas of their own train as on one rank") {
  ParityWork work = token_work(grouped_toy(), {.rows = 24, .steps = 4});
  work.trainer.max_grad_norm = 0.01;
  const RankRecord expected = reference(work);
  check_row({}, work, expected, 1e-5);
  for (const ParityRow& row : layouts()) check_row(row, work, expected, 1e-5);
  in_16_bit(work, 2, [](at::ScalarType dtype, const ParityWork& sixteen) {
    for (ParityRow row : layouts()) {
      row.parallel.precision = {.parameter = dtype};
      check_16_bit_row(row, sixteen);
    }
  });
}

TEST_CASE("groups count on a tensor axis, of whole shapes, and with shared ends") {
  const auto bloom = sized("bloom", {.vocabulary = 67, .hidden = 48, .heads = 6, .layers = 3});
  ParameterGroup wide{.name = "wide", .lr_factor = 0.5};
  wide.matches = [](const std::string&, const std::string&, at::IntArrayRef shape) {
    return shape.size() == 2 && shape[0] == 4 * 48;
  };
  wide.weight_decay = 0.3;
  ParityWork work = token_work(with_groups(causal(bloom), {wide, group("word_embeddings", 2)}),
                               {.vocabulary = 67, .steps = 3}, plain_bloom(bloom));
  work.trainer.max_grad_norm = 0.01;
  const RankRecord expected = reference(work);
  for (const auto& [pipeline, data, tensor] :
       {std::tuple(1, 2, 1), std::tuple(1, 1, 2), std::tuple(1, 2, 3), std::tuple(2, 2, 1)}) {
    ParityRow row{.ranks = pipeline * data * tensor,
                  .accumulation = 2,
                  .pipeline = pipeline,
                  .tensor = tensor};
    row.parallel.strategy = "zero2";
    row.parallel.sequence_parallel = tensor > 1;
    row.parallel.pipeline.shared_vocabulary = pipeline > 1;
    check_row(row, work, expected, 1e-5);
  }
}
