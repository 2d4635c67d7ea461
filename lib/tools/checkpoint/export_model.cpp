// SPDX-License-Identifier: MIT
#include "lib/tools/checkpoint/export_model.h"

#include <ATen/ATen.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "lib/checkpoint/expert_files.h"
#include "lib/run/model_files.h"
#include "tessera/checkpoint/adapter.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/language_model.h"
#include "tessera/program/stored_names.h"

namespace tessera::programs {
namespace {

const char* dtype_name(at::ScalarType dtype) {
  if (dtype == at::kHalf) return "float16";
  return dtype == at::kBFloat16 ? "bfloat16" : "float32";
}

// The configuration with the weights' dtype.
std::string config_text(const Json& config, at::ScalarType dtype) {
  JsonWriter out(2);
  out.begin_object();
  for (const auto& [key, value] : config.members()) {
    out.key(key);
    if (key == "dtype" || key == "torch_dtype") {
      out.value(dtype_name(dtype));
    } else {
      out.value(value);
    }
  }
  return out.end_object().text() + "\n";
}

// Maps "h.3.mlp.up.weight" to "transformer.h.3.mlp.dense_h_to_4h.weight", by the run's own list or
// the configuration's architecture.
class ExportNames {
 public:
  // adapter: set for a run that has trained adapters.
  ExportNames(const Json& model, const std::optional<AdapterConfig>& adapter,
              const std::string& origin)
      : origin_(origin) {
    if (const auto names = model.find("names")) {
      for (const auto& [name, exported] : names->members()) listed_.emplace(name, exported);
      return;
    }
    const LanguageModel language_model = LanguageModel::from_json(model.at("config"));
    const bool classifies = !language_model.config().labels.empty();
    spec_ = language_model.make(classifies ? ModelHead::kClassification : ModelHead::kCausal,
                                static_cast<int64_t>(language_model.config().labels.size()));
    if (adapter) spec_ = add_lora(std::move(spec_), adapter->rule);
    if (const std::string names = stored_names_by_expert(spec_); !names.empty()) {
      by_expert_ = Json::parse(names, {}, origin);
    }
  }

  HuggingFaceWriterOptions adapter_options() const {
    if (!spec_.blocks.empty()) return adapter_writer_options(spec_);
    std::vector<std::string> names;
    for (const auto& [name, stored] : listed_) names.push_back(stored.as_string());
    return adapter_writer_options(names);
  }

  // The tensors that the directory holds for this one.
  std::vector<std::pair<std::string, at::Tensor>> tensors(const std::string& name,
                                                          const at::Tensor& value) const {
    if (const auto stored = by_expert_ ? by_expert_->find(name) : std::nullopt) {
      return stored_tensors(*stored, value);
    }
    if (!spec_.blocks.empty()) return {{family_name(name), value}};
    const auto found = listed_.find(name);
    check(found != listed_.end(), ErrorCode::kDataLoss, origin_, ": tensor ", name,
          " is not in \"names\" of the run's \"model\"");
    return stored_tensors(found->second, value);
  }

 private:
  std::string family_name(const std::string& name) const {
    // The longest matching name counts, since h.1 and h.1.x are both names.
    const BlockBuilder* owner = nullptr;
    for (const BlockBuilder& block : spec_.blocks) {
      const bool fits = name.starts_with(block.name + ".");
      if (fits && (owner == nullptr || block.name.size() > owner->name.size())) owner = &block;
    }
    check(owner != nullptr, ErrorCode::kDataLoss, origin_, ": tensor ", name,
          " belongs to no block of ", spec_.name);
    const std::string parameter = name.substr(owner->name.size() + 1);
    return spec_.stored_name(owner->name, parameter);
  }

  std::string origin_;
  std::map<std::string, Json> listed_;
  ModelSpec spec_;
  std::optional<Json> by_expert_;  // of a built-in model with experts
};

// Frozen weights in 8 bits are decoded.
at::Tensor value_of(const Checkpoint& checkpoint, const TensorKey& key) {
  const at::Tensor value = checkpoint.read(key);
  if (key.kind != "codes") return value;
  return value.view(at::kFloat8_e4m3fn).to(at::kFloat) * checkpoint.read({key.name, "scale"});
}

}  // namespace

int64_t export_model(const Checkpoint& checkpoint, const ExportOptions& options) {
  const std::string origin = checkpoint.path() + "/manifest.json";
  const Json run = Json::parse(checkpoint.run(), {}, origin + ": run");
  const auto model = run.find("model");
  check(model && model->contains("config"), ErrorCode::kDataLoss, origin,
        ": the run has kept no configuration of its model (\"model\": {\"config\": ...}), so there "
        "is nothing that transformers could open");
  std::optional<AdapterConfig> adapter;
  if (const auto config = run.find("adapter")) adapter = AdapterConfig::from_json(*config);
  const ExportNames names(*model, adapter, origin);
  HuggingFaceWriterOptions how{.dtype = options.dtype, .max_shard_bytes = options.max_shard_bytes};
  if (adapter) {
    how = names.adapter_options();
    how.dtype = options.dtype;
  }
  HuggingFaceWriter writer(options.directory, how);
  int64_t count = 0;
  for (const auto& [key, info] : checkpoint.manifest().tensors) {
    const bool is_buffer = key.kind == "buffer";
    const bool is_weight = key.kind == "parameter" || key.kind == "codes";
    if (is_buffer ? adapter.has_value() : !is_weight) continue;  // optimizer state
    for (const auto& [name, tensor] : names.tensors(key.name, value_of(checkpoint, key))) {
      if (is_buffer) {
        writer.add_buffer(name, tensor);
      } else {
        writer.add(name, in_adapter_file(name, tensor));
      }
      ++count;
    }
  }
  if (adapter) {
    writer.add_text("adapter_config.json", adapter->to_json());
  } else {
    writer.add_text("config.json", config_text(model->at("config"), options.dtype));
  }
  add_tokenizer_files(writer, options.tokenizer);
  writer.commit();
  return count;
}

}  // namespace tessera::programs
