#include "tessera/models/language_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "lib/core/joined.h"
#include "lib/models/costs.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

// What is not in the configurations themselves. Order and number are those of
// LanguageModel::Config.
struct Architecture {
  const char* model_type;  // in config.json
  LanguageModel::Config (*from_json)(const Json&);
  LanguageModel::Config (*preset)(const std::string&);
  std::vector<std::string> (*preset_names)();
};

template <typename Config>
constexpr Architecture describe(const char* model_type) {
  return {model_type,
          [](const Json& json) { return LanguageModel::Config(Config::from_json(json)); },
          [](const std::string& name) { return LanguageModel::Config(Config::preset(name)); },
          &Config::preset_names};
}

constexpr Architecture kArchitectures[] = {
    describe<BloomConfig>("bloom"), describe<Gpt2Config>("gpt2"), describe<LlamaConfig>("llama")};
static_assert(std::size(kArchitectures) == std::variant_size_v<LanguageModel::Config>);

ModelSpec causal(const BloomConfig& config) { return make_bloom_causal(config); }
ModelSpec classifier(const BloomConfig& config, int64_t num_labels) {
  return make_bloom_classifier(config, num_labels);
}
ModelSpec causal(const Gpt2Config& config) { return make_gpt2_causal(config); }
ModelSpec classifier(const Gpt2Config& config, int64_t num_labels) {
  return make_gpt2_classifier(config, num_labels);
}
ModelSpec causal(const LlamaConfig& config) { return make_llama_causal(config); }
ModelSpec classifier(const LlamaConfig& config, int64_t num_labels) {
  return make_llama_classifier(config, num_labels);
}

}  // namespace

LanguageModel LanguageModel::from_json(const Json& json) {
  const Json type = json.at("model_type");
  std::vector<std::string> known;
  for (const Architecture& architecture : kArchitectures) {
    if (type.as_string() == architecture.model_type) return architecture.from_json(json);
    known.emplace_back(architecture.model_type);
  }
  type.fail(concat("model type \"", type.as_string(), "\" is not supported; supported are ",
                   joined(known)));
}

LanguageModel LanguageModel::from_file(const std::string& path) {
  return from_json(Json::parse_file(path));
}

LanguageModel LanguageModel::from_directory(const std::string& path) {
  return from_file(path + "/config.json");
}

LanguageModel LanguageModel::preset(const std::string& name) {
  for (const Architecture& architecture : kArchitectures) {
    const auto names = architecture.preset_names();
    const bool here = std::ranges::find(names, name) != names.end();
    if (here || (name == "bloom-7b" && architecture.model_type == std::string("bloom"))) {
      return architecture.preset(name);
    }
  }
  fail(ErrorCode::kInvalidArgument, "unknown model configuration \"", name, "\"; known are ",
       joined(preset_names()));
}

std::vector<std::string> LanguageModel::preset_names() {
  std::vector<std::string> names;
  for (const Architecture& architecture : kArchitectures) {
    for (std::string& name : architecture.preset_names()) names.push_back(std::move(name));
  }
  return names;
}

const LanguageModelConfig& LanguageModel::config() const {
  return std::visit([](const auto& c) -> const LanguageModelConfig& { return c; }, config_);
}

LanguageModelConfig& LanguageModel::config() {
  return std::visit([](auto& c) -> LanguageModelConfig& { return c; }, config_);
}

void LanguageModel::validate() const {
  std::visit([](const auto& c) { c.validate(); }, config_);
}

ModelSpec LanguageModel::make_causal() const {
  return std::visit([](const auto& c) { return causal(c); }, config_);
}

ModelSpec LanguageModel::make_classifier(int64_t num_labels) const {
  return std::visit([&](const auto& c) { return classifier(c, num_labels); }, config_);
}

ModelSpec LanguageModel::make(ModelHead head, int64_t num_labels) const {
  return head == ModelHead::kCausal ? make_causal() : make_classifier(num_labels);
}

std::vector<std::vector<int64_t>> LanguageModel::parameter_sizes(ModelHead head,
                                                                 int64_t num_labels) const {
  return tessera::parameter_sizes(make(head, num_labels));
}

int64_t LanguageModel::parameter_count(ModelHead head, int64_t num_labels) const {
  int64_t count = 0;
  for (const auto& block : parameter_sizes(head, num_labels)) {
    count = std::accumulate(block.begin(), block.end(), count);
  }
  return count;
}

std::string LanguageModel::to_json(ModelHead head, at::ScalarType dtype) const {
  return std::visit([&](const auto& c) { return c.to_json(head, dtype); }, config_);
}

}  // namespace tessera
