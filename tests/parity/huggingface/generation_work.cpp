// SPDX-License-Identifier: MIT
#include "tests/parity/huggingface/generation_work.h"

#include <ATen/ATen.h>

#include "lib/testing/player.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/optim/sgd.h"
#include "tests/support/ranks.hpp"

namespace tessera::testing {

using test::require;

std::vector<int64_t> ids_of(const Json& row) {
  std::vector<int64_t> ids;
  for (const Json& id : row.items()) ids.push_back(id.as_int64());
  return ids;
}

Json generation_numbers() { return Json::parse_file(fixture_path("generation/expected.json")); }

WritingTrial::WritingTrial(const std::string& model) : fixture(load_fixture(model)) {
  const Json numbers = generation_numbers(), own = numbers.at("models").at(model);
  for (const Json& prompt : numbers.at("prompts").items()) prompts.push_back(ids_of(prompt));
  for (const Json& row : own.at("ids").items()) expected.push_back(ids_of(row));
  options = {.max_new_tokens = numbers.at("max_new_tokens").as_int64(),
             .end_tokens = {own.at("end_token").as_int64()},
             .max_positions = fixture.config().max_positions,
             .vocabulary = fixture.config().vocabulary,
             .batch_size = 4};
}

std::string WritingLayout::name() const {
  return concat(parallel.strategy, " ", pipeline, "x", data, "x", tensor,
                parallel.sequence_parallel ? " sequence-parallel" : "",
                parallel.pipeline.shared_vocabulary ? " shared-vocabulary" : "",
                parallel.offload.what == Offload::kNone ? "" : " offload", " ",
                parallel.pipeline.schedule);
}

WritingLayout writing_layout(const std::string& strategy, int pipeline, int data, int tensor) {
  WritingLayout layout{.pipeline = pipeline, .data = data, .tensor = tensor};
  layout.parallel.strategy = strategy;
  layout.parallel.persistence_threshold = 100;
  return layout;
}

void with_strategy(Communicator& world, const WritingLayout& layout, const Fixture& fixture,
                   const std::function<void(Strategy&, const DeviceMesh&)>& fn) {
  const HuggingFaceDirectory source(fixture.directory);
  const Player player(world, {.model = fixture.model,
                              .mesh = {layout.pipeline, layout.data, layout.tensor},
                              .parallel = layout.parallel,
                              .optimizer = make_sgd({}),
                              .source = &source});
  fn(player.strategy(), player.mesh());
}

void require_expected(const std::vector<GeneratedRow>& rows, const WritingTrial& trial) {
  require(rows.size() == trial.expected.size(), rows.size(), " rows");
  for (size_t i = 0; i < rows.size(); ++i) {
    require(rows[i].ids == trial.expected[i], "prompt ", i, ": ", at::IntArrayRef(rows[i].ids),
            " instead of ", at::IntArrayRef(trial.expected[i]));
    const bool ended = rows[i].ids.back() == trial.options.end_tokens.front();
    require((rows[i].finish == FinishReason::kEndToken) == ended, "prompt ", i, ": finish reason");
  }
}

}  // namespace tessera::testing
