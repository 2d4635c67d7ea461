// SPDX-License-Identifier: MIT
#include "tests/parity/huggingface/fixtures.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/error.h"

namespace tessera::testing {

std::string fixture_path(const std::string& name) {
  return TESSERA_HUGGINGFACE_FIXTURES "/" + name;
}

Fixture load_fixture(const std::string& name) { return load_fixture_at(fixture_path(name)); }

Fixture load_fixture_at(const std::string& directory) {
  Fixture fixture;
  fixture.directory = directory;
  fixture.language_model = LanguageModel::from_directory(directory);
  const auto labels = static_cast<int64_t>(fixture.config().labels.size());
  fixture.head = labels > 0 ? ModelHead::kClassification : ModelHead::kCausal;
  fixture.model = fixture.language_model.make(fixture.head, labels);
  return fixture;
}

std::vector<MicroBatch> fixture_batches(const Fixture& fixture) {
  const SafetensorsFile file(fixture.directory + "/batches.safetensors");
  const at::Tensor ids = file.read("input_ids").to(at::kLong);
  const at::Tensor mask = file.read("attention_mask").to(at::kBool);
  const at::Tensor labels = file.read("labels").to(at::kLong);
  std::vector<MicroBatch> batches;
  for (int64_t step = 0; step < ids.size(0); ++step) {
    batches.push_back(make_micro_batch(ids[step], labels[step]));
    batches.back().attention_mask = mask[step];
  }
  return batches;
}

Json expected_numbers(const Fixture& fixture) {
  return Json::parse_file(fixture.directory + "/expected.json");
}

std::vector<double> numbers(const Json& array) {
  std::vector<double> result;
  for (const auto& item : array.items()) {
    result.push_back(item.is_null() ? std::nan("") : item.as_double());
  }
  return result;
}

at::Tensor without_key_bias(const std::string& name, const at::Tensor& value, int64_t heads) {
  if (name.ends_with("c_attn.bias")) {
    const at::Tensor parts = value.reshape({3, -1});
    return at::cat({parts[0], parts[2]});
  }
  if (!name.ends_with("query_key_value.bias")) return value.flatten();
  const at::Tensor parts = value.reshape({heads, 3, -1});
  return at::stack({parts.select(1, 0), parts.select(1, 2)}, 1).flatten();
}

std::string checkpoint_name(const ModelSpec& model, const std::string& key) {
  for (const BlockBuilder& block : model.blocks) {
    if (!key.starts_with(block.name + ".")) continue;
    return model.checkpoint_name(block.name, key.substr(block.name.size() + 1));
  }
  fail(ErrorCode::kInternal, key, " belongs to no block");
}

}  // namespace tessera::testing
