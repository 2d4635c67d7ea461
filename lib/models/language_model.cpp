// SPDX-License-Identifier: MIT
#include "tessera/models/language_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "lib/core/folder_file.h"
#include "lib/core/joined.h"
#include "lib/models/config_json.h"
#include "lib/models/costs.h"
#include "lib/models/decoder_blocks.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/model/whole_model.h"

namespace tessera {
namespace {

constexpr const char* kEmbedding = "embedding";
constexpr const char* kHead = "head";

using MakeBlock = std::function<std::unique_ptr<Block>(const BuildContext&, BlockWeights)>;

int64_t tensor_divisor(const DecoderConfig& config) {
  if (config.clamped_experts) return 0;  // experts with biases are not cut
  int64_t divisor = config.key_head_count();
  bool dense = false;
  for (size_t layer = 0; layer < static_cast<size_t>(config.layers); ++layer) {
    dense = dense || !config.has_experts(layer);
  }
  if (dense) divisor = std::gcd(divisor, config.inner_size());
  divisor = std::gcd(divisor, config.shared_inner);
  return config.experts > 0 ? std::gcd(divisor, config.expert_inner) : divisor;
}

// Adds blocks in order; their index seeds their weights.
class Assembly {
 public:
  explicit Assembly(const DecoderConfig& config) : family_(family_of(config)) {
    config.validate();
    spec_.name = config.name;
    spec_.tensor_divisor = tensor_divisor(config);
    spec_.expert_divisor = config.clamped_experts ? 0 : config.experts;
    spec_.shareable_ends = true;
    spec_.default_lora_targets = family_.lora_targets;
    spec_.checkpoint_name = [&family = family_](const std::string& block,
                                                const std::string& parameter) {
      return checkpoint_name(family, block, parameter);
    };
    add(kEmbedding, [config](const BuildContext& context, BlockWeights weights) {
      return make_embedding(config, context, std::move(weights));
    });
    for (int64_t i = 0; i < config.layers; ++i) {
      add(family_.layers + std::to_string(i),
          [config, index = spec_.blocks.size()](const BuildContext& context, BlockWeights weights) {
            return make_layer(config, context, std::move(weights), index);
          });
    }
  }

  void add(const std::string& name, MakeBlock make) {
    spec_.blocks.push_back({name, [make = std::move(make), &family = family_, name,
                                   index = spec_.blocks.size()](const BuildContext& context) {
                              return make(context,
                                          BlockWeights(context, index, [&](auto& parameter) {
                                            return checkpoint_name(family, name, parameter);
                                          }));
                            }});
  }
  ModelSpec& spec() { return spec_; }

 private:
  const DecoderFamily& family_;
  ModelSpec spec_;
};

}  // namespace

LanguageModel LanguageModel::from_json(const Json& json) { return config_json::read(json); }

LanguageModel LanguageModel::from_file(const std::string& path) {
  return from_json(Json::parse_file(path));
}

LanguageModel LanguageModel::from_directory(const std::string& path) {
  return from_file(file_in(path, "config.json"));
}

LanguageModel LanguageModel::preset(const std::string& name) {
  const std::string known = name == "bloom-7b" ? "bloom-7b1" : name;
  for (const DecoderFamily* family : decoder_families()) {
    for (const DecoderConfig& preset : family->presets) {
      if (preset.name != known) continue;
      LanguageModel model(preset);
      if (known != name) {
        model.config_.notices.push_back(
            concat("\"", name, "\" is no published name: using ", known));
      }
      config_json::notice_dropout(model.config_);
      return model;
    }
  }
  fail(ErrorCode::kInvalidArgument, "unknown model configuration \"", name, "\"; known are ",
       joined(preset_names()));
}

LanguageModel LanguageModel::from_name(const std::string& name) {
  return name.ends_with(".json") ? from_file(name) : preset(name);
}

std::vector<std::string> LanguageModel::preset_names() {
  std::vector<std::string> names;
  for (const DecoderFamily* family : decoder_families()) {
    for (const DecoderConfig& preset : family->presets) names.push_back(preset.name);
  }
  return names;
}

DecoderConfig LanguageModel::defaults(const std::string& model_type) {
  return family_of(model_type).defaults;
}

ModelSpec LanguageModel::make_causal() const {
  Assembly assembly(config_);
  assembly.add(kHead, [config = config_](const BuildContext& context, BlockWeights weights) {
    return make_causal_head(config, context, std::move(weights));
  });
  ModelSpec& spec = assembly.spec();
  const std::string table = table_name(config_);
  if (config_.tied_head) spec.tied.push_back({kEmbedding, table, kHead, table});
  fill_costs(spec, config_);
  return spec;
}

ModelSpec LanguageModel::make_classifier(int64_t num_labels) const {
  check(num_labels >= 2, ErrorCode::kInvalidArgument, "model ", config_.name,
        ": a classifier needs at least 2 labels, not ", num_labels);
  DecoderConfig body = config_;
  body.router_aux_loss_coef = body.router_z_loss_coef = 0, body.count_experts = false;
  Assembly assembly(body);
  assembly.add(kHead, [config = config_, num_labels](const BuildContext&, BlockWeights weights) {
    return make_classification_head(config, num_labels, std::move(weights));
  });
  fill_costs(assembly.spec(), config_);
  return assembly.spec();
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
  return config_json::write(config_, head, dtype);
}

}  // namespace tessera
