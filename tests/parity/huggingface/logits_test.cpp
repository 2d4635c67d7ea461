// SPDX-License-Identifier: MIT
// Logits of every directory variant equal those of transformers.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "lib/checkpoint/expert_files.h"
#include "lib/checkpoint/mxfp4.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/model/whole_model.h"
#include "tessera/program/stored_names.h"
#include "tests/parity/huggingface/fixtures.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Over all positions, padding included.
double largest_difference(const at::Tensor& actual, const at::Tensor& expected) {
  REQUIRE(actual.sizes() == expected.sizes());
  return (actual - expected).abs().max().item<double>();
}

at::Tensor logits_of(const std::string& directory, const MicroBatch& batch) {
  const LanguageModel model = LanguageModel::from_directory(directory);
  const HuggingFaceDirectory source(directory);
  const at::NoGradGuard no_grad;
  return WholeModel(model.make_causal(), {.source = &source}).logits(batch);
}

}  // namespace

TEST_CASE("logits agree with transformers: bare, prefixed, sharded, tied and untied directories") {
  for (const std::string name :
       {"bare_fp16", "sharded_bf16", "untied", "stored_head", "hub_config"}) {
    INFO(name);
    const std::string directory = fixture_path("variants/" + name);
    const SafetensorsFile expected(directory + "/expected.safetensors");
    MicroBatch batch;
    batch.input_ids = expected.read("input_ids");
    batch.attention_mask = expected.read("attention_mask").to(at::kBool);
    const double difference =
        largest_difference(logits_of(directory, batch), expected.read("logits"));
    std::cout << "logits of " << name << ": largest difference " << difference << "\n";
    CHECK(difference < 1e-4);
  }
}

TEST_CASE("logits agree with transformers: every family, both heads, padding on both sides") {
  for (const std::string name : kFixtures) {
    INFO(name);
    const Fixture fixture = load_fixture(name);
    const MicroBatch batch = fixture_batches(fixture).front();
    CHECK_FALSE(batch.attention_mask.select(1, 0).all().item<bool>());  // some rows are padded left
    CHECK_FALSE(batch.attention_mask.select(1, -1).all().item<bool>());  // and some right
    const HuggingFaceDirectory source(fixture.directory);
    const at::NoGradGuard no_grad;
    const at::Tensor logits = WholeModel(fixture.model, {.source = &source}).logits(batch);
    const SafetensorsFile expected(fixture.directory + "/expected.safetensors");
    const at::Tensor rows = expected.read("logits");  // the first rows
    const double difference = largest_difference(logits.narrow(0, 0, rows.size(0)), rows);
    std::cout << "logits of " << name << ": largest difference " << difference << "\n";
    CHECK(difference < 1e-4);
  }
}

TEST_CASE("experts are read from one tensor of all, as transformers 5 has them, and one by one") {
  for (const std::string name : {"qwen3_moe", "olmoe", "mixtral", "qwen2_moe", "glm4_moe"}) {
    INFO(name);
    const Fixture fixture = load_fixture(name);
    const HuggingFaceDirectory by_expert(fixture.directory);
    const TempDir folder;
    HuggingFaceWriter writer(folder.path("fused"));
    for (const ParameterInfo& p : parameters_of(fixture.model)) {
      std::string stored = fixture.model.stored_name(p.block, p.name);
      const at::Tensor value = by_expert.read(stored, p.shape);
      if (const size_t at = stored.find("block_sparse_moe"); at != std::string::npos) {
        stored.replace(at, std::string("block_sparse_moe").size(), "mlp");
      }
      writer.add(stored, value);
    }
    // Biases of routing are no parameters.
    std::vector<std::string> names;
    for (const std::string& name : by_expert.names()) {
      if (!name.ends_with("e_score_correction_bias")) continue;
      names.push_back(name);
      const at::Tensor bias = by_expert.read(name, {fixture.config().experts});
      CHECK(bias.abs().min().item<double>() > 0);
      writer.add_buffer(name, bias);
    }
    CHECK(names.size() == (fixture.config().sigmoid_routing ? 2 : 0));
    writer.add_text("config.json", fixture.language_model.to_json(fixture.head));
    writer.commit();
    const HuggingFaceDirectory fused(folder.path("fused"));
    CHECK_FALSE(fused.names() == by_expert.names());
    const MicroBatch batch = fixture_batches(fixture).front();
    CHECK(at::equal(logits_of(fixture.directory, batch), logits_of(folder.path("fused"), batch)));
    // Back into one tensor an expert.
    const Json listed = Json::parse(stored_names_by_expert(fixture.model), {}, "names");
    for (const ParameterInfo& p : parameters_of(fixture.model)) {
      const at::Tensor whole = by_expert.read(fixture.model.stored_name(p.block, p.name), p.shape);
      for (const auto& [stored, part] : stored_tensors(listed.at(p.block + "." + p.name), whole)) {
        names.push_back(stored);
        CHECK(at::equal(part, by_expert.read(stored, part.sizes())));
      }
    }
    std::ranges::sort(names);
    CHECK(names == by_expert.names());
  }
}

TEST_CASE("experts in MXFP4 are read as transformers decodes them, and computed with") {
  const std::string directory = fixture_path("gpt_oss_mxfp4");
  const SafetensorsFile expected(directory + "/expected.safetensors");
  const at::Tensor blocks = expected.read("blocks"), scales = expected.read("scales"),
                   decoded = expected.read("decoded");
  const at::Tensor mine = decode_mxfp4(blocks, scales, "mine");
  CHECK(mine.scalar_type() == at::kBFloat16);
  CHECK(mine.sizes() == decoded.sizes());
  // All bits, signs of zeros too.
  CHECK(at::equal(mine.view(at::kShort), decoded.view(at::kShort)));
  CHECK_THROWS_WITH(decode_mxfp4(blocks, at::full_like(scales, 255), "mine"),
                    Catch::Contains("mine: a scale is 255"));
  CHECK_THROWS_WITH(decode_mxfp4(blocks, scales.narrow(1, 0, 8), "mine"),
                    Catch::Contains("MXFP4 needs"));

  const HuggingFaceDirectory source(directory);
  for (const char* part : {"gate_up_proj", "down_proj"}) {
    const std::string name = std::string("model.layers.0.mlp.experts.") + part;
    const at::Tensor whole = expected.read(name);
    CHECK(source.has(name));
    CHECK(at::equal(source.read(name, whole.sizes()), whole));
    CHECK_THROWS_WITH(source.read(name, {3, 1, 32}), Catch::Contains("config.json asks for"));
  }
  MicroBatch batch;
  batch.input_ids = expected.read("input_ids");
  batch.attention_mask = expected.read("attention_mask").to(at::kBool);
  const at::Tensor logits = expected.read("logits");
  CHECK(largest_difference(logits_of(directory, batch), logits) <
        1e-5 * logits.abs().max().item<double>());
}

TEST_CASE("exactly the parameters that decay under transformers' Trainer decay") {
  for (const std::string name : kFixtures) {
    const Fixture fixture = load_fixture(name);
    std::vector<std::string> expected, actual;
    for (const auto& item : expected_numbers(fixture).at("decay").items()) {
      expected.push_back(item.as_string());
    }
    const WholeModel model(fixture.model, {});
    for (const auto& parameter : model.parameters()) {
      if (parameter.weight_decay) actual.push_back(parameter.name);
    }
    std::ranges::sort(actual);
    CHECK(actual == expected);
  }
}

TEST_CASE("a model written in 16 bits and in shards gives the logits of its rounded weights") {
  const Fixture fixture = load_fixture("causal");
  const MicroBatch batch = fixture_batches(fixture).front();
  const HuggingFaceDirectory source(fixture.directory);
  WholeModel model(fixture.model, {.source = &source});
  const TempDir folder;
  HuggingFaceWriter writer(folder.path("final"),
                           {.dtype = at::kBFloat16, .max_shard_bytes = 20'000});
  for (const auto& parameter : model.parameters()) writer.add(parameter.name, parameter.tensor);
  writer.add_text("config.json", fixture.language_model.to_json(fixture.head, at::kBFloat16));
  writer.commit();
  const at::Tensor from_files = logits_of(folder.path("final"), batch);
  const at::NoGradGuard no_grad;
  for (const auto& parameter : model.parameters()) {
    parameter.tensor.copy_(parameter.tensor.to(at::kBFloat16));
  }
  CHECK(at::equal(from_files, model.logits(batch)));
}
