// SPDX-License-Identifier: MIT
#include "tessera/models/language_model.h"

#include <numeric>

#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("every preset makes a model whose sizes come from the shapes of its blocks") {
  for (const std::string& name : LanguageModel::preset_names()) {
    INFO(name);
    const LanguageModel model = LanguageModel::preset(name);
    CHECK(model.config().name == name);
    model.validate();
    for (const ModelHead head : {ModelHead::kCausal, ModelHead::kClassification}) {
      const ModelSpec spec = model.make(head, 3);
      const auto sizes = model.parameter_sizes(head, 3);
      CHECK(spec.name == name);
      REQUIRE(spec.block_count() == static_cast<size_t>(model.config().layers) + 2);
      REQUIRE(sizes.size() == spec.block_count());
      int64_t aliases = 0, total = 0;
      for (size_t i = 0; i < sizes.size(); ++i) {
        const int64_t block = std::accumulate(sizes[i].begin(), sizes[i].end(), int64_t{0});
        total += block;
        aliases += spec.blocks[i].cost.parameters - block;
      }
      const bool tied = head == ModelHead::kCausal && model.config().tied_head;
      CHECK(aliases == (tied ? model.config().vocabulary * model.config().hidden : 0));
      CHECK(total == model.parameter_count(head, 3));
    }
  }
}

TEST_CASE("costs count every matrix that a token meets, the tied head's included") {
  LanguageModel model = LanguageModel::preset("bloom-tiny");
  const double h = 64, v = 1024;
  const auto flops = [](const ModelSpec& spec) {
    std::vector<double> values;
    for (const auto& block : spec.blocks) values.push_back(block.cost.flops_per_token);
    return values;
  };
  const std::vector<double> tied{0, 72 * h * h, 72 * h * h, 6 * v * h};
  CHECK(flops(model.make_causal()) == tied);
  model.config().tied_head = false;
  CHECK(flops(model.make_causal()) == tied);
  CHECK(flops(model.make_classifier(5)).back() == 6 * 5 * h);
}

TEST_CASE("a model type or preset that is unknown is refused with what is known") {
  const Json json = Json::parse(R"({"model_type": "mamba", "vocab_size": 9})", {}, "config.json");
  const std::string type = error_of(ErrorCode::kDataLoss, [&] { LanguageModel::from_json(json); });
  CHECK_THAT(type, test::contains("\"mamba\"") && test::contains("bloom"));
  CHECK_THAT(type, test::contains("config.json"));
  const std::string preset =
      error_of(ErrorCode::kInvalidArgument, [] { LanguageModel::preset("gpt5"); });
  CHECK_THAT(preset, test::contains("bloom-7b1"));
  CHECK(LanguageModel::preset("bloom-7b").config().name == "bloom-7b1");
}
