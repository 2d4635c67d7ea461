// SPDX-License-Identifier: MIT
#pragma once
// Directories written by make_fixtures.py.
#include <string>
#include <vector>

#include "tessera/core/json.h"
#include "tessera/core/micro_batch.h"
#include "tessera/models/language_model.h"

namespace tessera::testing {

// Fixtures with training numbers.
constexpr const char* kFixtures[] = {"causal",
                                     "classification",
                                     "glm4_moe",
                                     "gpt2",
                                     "gpt2_classification",
                                     "gpt2_gelu",
                                     "gpt_oss",
                                     "llama",
                                     "llama_classification",
                                     "llama_tied",
                                     "mistral",
                                     "mistral_classification",
                                     "mixtral",
                                     "olmoe",
                                     "qwen2",
                                     "qwen2_moe",
                                     "qwen2_tied",
                                     "qwen3",
                                     "qwen3_classification",
                                     "qwen3_moe"};

std::string fixture_path(const std::string& name);

struct Fixture {
  std::string directory;
  LanguageModel language_model;
  ModelHead head;   // from "architectures"
  ModelSpec model;  // with that head
  const DecoderConfig& config() const { return language_model.config(); }
};
Fixture load_fixture(const std::string& name);
Fixture load_fixture_at(const std::string& directory);

// Global batches of batches.safetensors with their counts.
std::vector<MicroBatch> fixture_batches(const Fixture& fixture);
Json expected_numbers(const Fixture& fixture);
std::vector<double> numbers(const Json& array);  // null becomes NaN

// As in make_fixtures.py, without the key bias, which does not affect the model.
at::Tensor without_key_bias(const std::string& name, const at::Tensor& value, int64_t heads);
// Maps "block.parameter"; block names may contain a dot.
std::string checkpoint_name(const ModelSpec& model, const std::string& key);

}  // namespace tessera::testing
