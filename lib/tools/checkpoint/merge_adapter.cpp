// SPDX-License-Identifier: MIT
#include "lib/tools/checkpoint/merge_adapter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "lib/model/expert_names.h"
#include "lib/run/model_files.h"
#include "lib/tools/checkpoint/merge_experts.h"
#include "tessera/checkpoint/adapter.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/language_model.h"

namespace tessera::programs {
namespace {

constexpr const char* kClassificationHead = "score.weight";

// Rows of one expert in a base's tensor of all.
struct ExpertRows {
  int64_t expert = 0, part = 0, parts = 1;
  auto operator<=>(const ExpertRows&) const = default;
};

// Changes of an adapter, by the base's stored names.
struct Change {
  std::string a, b, whole;  // names in the adapter
  std::map<ExpertRows, Change> of_experts = {};

  void set(const std::string& entry) {
    (!is_adapter(entry) ? whole : entry.ends_with(kLoraA) ? a : b) = entry;
  }
};

// Where the base holds an expert's layer ("...experts.3.gate_proj.weight") in a tensor of all; ""
// elsewhere.
std::pair<std::string, ExpertRows> in_tensor_of_all(const std::string& weight,
                                                    const HuggingFaceDirectory& base) {
  constexpr std::string_view kWeight = ".weight", kExperts = ".experts.";
  const std::string all = without_expert(weight);
  if (all == weight || !all.ends_with(kWeight)) return {};
  const std::string layer = all.substr(0, all.size() - kWeight.size());
  const size_t number = all.rfind(kExperts) + kExperts.size();
  for (const char* tensor : {"gate_up_proj", "down_proj"}) {
    const std::string name = all.substr(0, number) + tensor;
    const std::vector<std::string> layers = layers_of_experts(name);
    const auto found = std::ranges::find(layers, layer);
    if (found == layers.end()) continue;
    return {base.stored_name(name),
            {std::stoll(weight.substr(number)), found - layers.begin(),
             static_cast<int64_t>(layers.size())}};
  }
  return {};
}

std::map<std::string, Change> changes_of(const AdapterDirectory& adapter,
                                         const HuggingFaceDirectory& base,
                                         std::vector<std::string>& added) {
  std::map<std::string, Change> changes;
  for (const SafetensorsEntry& entry : adapter.file().header().entries) {
    const std::string name = entry.name.substr(kLoraPrefix.size());
    if (is_of_all_experts(name)) continue;  // see ExpertsMerge
    const bool part = is_adapter(name);
    const std::string weight = part ? name.substr(0, name.size() - kLoraA.size()) + "weight" : name;
    const std::string stored = base.stored_name(weight);
    if (const auto [tensor, rows] = in_tensor_of_all(weight, base);
        stored.empty() && part && !tensor.empty()) {
      changes[tensor].of_experts[rows].set(entry.name);
      continue;
    }
    if (stored.empty() && !part) {  // a head that the base lacks
      added.push_back(entry.name);
      continue;
    }
    check(!stored.empty(), ErrorCode::kDataLoss, adapter.file().path(), ": byte ", entry.begin,
          ": tensor \"", entry.name, "\": the base has no weight \"", weight,
          "\"; the adapter is of another model");
    changes[stored].set(entry.name);
  }
  return changes;
}

at::Tensor read(const AdapterDirectory& adapter, const std::string& name) {
  return adapter.file().read(name).to(at::kFloat);
}

at::Tensor merged(const at::Tensor& weight, const std::string& stored, const Change& change,
                  const AdapterDirectory& adapter) {
  const std::string& path = adapter.file().path();
  if (!change.of_experts.empty()) {
    const at::Tensor all = weight.clone();
    for (const auto& [rows, of_expert] : change.of_experts) {
      check(rows.expert < all.size(0), ErrorCode::kDataLoss, path, ": has expert ", rows.expert,
            " of ", stored, ", the base has ", all.size(0), "; the adapter is of another model");
      const int64_t count = all.size(1) / rows.parts;
      const at::Tensor own = all.select(0, rows.expert).narrow(0, rows.part * count, count);
      own.copy_(merged(own, concat(stored, ", expert ", rows.expert), of_expert, adapter));
    }
    return all;
  }
  if (!change.whole.empty()) {
    const at::Tensor whole = adapter.file().read(change.whole);
    check(whole.sizes() == weight.sizes(), ErrorCode::kDataLoss, path, ": tensor \"", change.whole,
          "\" has shape ", whole.sizes(), ", the base's has ", weight.sizes(),
          "; the adapter is of another model");
    return whole.to(weight.scalar_type());
  }
  check(!change.a.empty() && !change.b.empty(), ErrorCode::kDataLoss, path, ": of ", stored,
        " only one of lora_A and lora_B is there");
  const at::Tensor a = read(adapter, change.a), b = read(adapter, change.b);
  at::Tensor product = b.matmul(a);  // [out, in]
  if (adapter.config().fan_in_fan_out) product = product.t();
  check(product.sizes() == weight.sizes(), ErrorCode::kDataLoss, path, ": the adapter of ", stored,
        " makes ", product.sizes(), ", the base's weight is ", weight.sizes(),
        "; the adapter is of another model");
  return weight.to(at::kFloat).add(product, adapter.config().rule.scale()).to(weight.scalar_type());
}

// Configuration for a classifier on a causal base, with its labels.
std::string config_text(const MergeOptions& options, int64_t num_labels, at::ScalarType dtype) {
  LanguageModel model = LanguageModel::from_directory(options.base);
  std::vector<std::string>& labels = model.config().labels;
  if (static_cast<int64_t>(labels.size()) != num_labels) {
    labels.clear();
    for (int64_t i = 0; i < num_labels; ++i) labels.push_back(concat("LABEL_", i));
  }
  return model.to_json(ModelHead::kClassification, dtype);
}

// Returns the skipped files with reasons.
std::vector<std::string> add_other_files(HuggingFaceWriter& writer, const std::string& base,
                                         bool config) {
  std::vector<std::string> skipped;
  const FilesToCopy files = files_to_copy(base, [&](const std::string& name) {
    const bool weights = !name.starts_with("program.") &&
                         (name.find(".safetensors") != name.npos || name.ends_with(".bin"));
    if (name.starts_with('.')) skipped.push_back(concat(base, "/", name, " is hidden"));
    return !name.starts_with('.') && !weights && (config || name != "config.json");
  });
  for (const std::string& path : files.paths) writer.add_file(path);
  std::ranges::sort(skipped);
  std::ranges::copy(files.skipped, std::back_inserter(skipped));
  std::ranges::copy(add_more_templates(writer, base), std::back_inserter(skipped));
  return skipped;
}

}  // namespace

MergedAdapter merge_adapter(const MergeOptions& options) {
  const HuggingFaceDirectory base(options.base);
  const AdapterDirectory adapter(options.adapter);
  std::vector<std::string> names = base.names();
  if (adapter.config().task_type == "SEQ_CLS") names.emplace_back(kClassificationHead);
  adapter.check_complete(names);
  std::vector<std::string> added;
  const std::map<std::string, Change> changes = changes_of(adapter, base, added);
  ExpertsMerge experts(adapter, base);
  HuggingFaceWriter writer(options.directory, {.max_shard_bytes = options.max_shard_bytes});
  MergedAdapter result;
  at::ScalarType dtype = at::kFloat;
  for (const SafetensorsFile& file : base.files()) {
    for (const SafetensorsEntry& entry : file.header().entries) {
      at::Tensor value = file.read(entry.name);
      if (const auto change = changes.find(entry.name); change != changes.end()) {
        value = merged(value, entry.name, change->second, adapter);
        ++(change->second.whole.empty() ? result.adapted : result.replaced);
      }
      if (experts.changes(entry.name)) {
        value = experts.merged(value, entry.name);
        ++result.adapted;
      }
      if (value.is_floating_point()) dtype = value.scalar_type();
      writer.add_buffer(entry.name, value);
      ++result.tensors;
    }
  }
  int64_t num_labels = 0;
  for (const std::string& name : added) {
    const at::Tensor value = adapter.file().read(name).to(dtype);
    const std::string stored = name.substr(kLoraPrefix.size());
    if (stored == kClassificationHead) num_labels = value.size(0);
    writer.add_buffer(stored, value);
    ++result.tensors;
    ++result.replaced;
  }
  const bool head = num_labels > 0;
  if (head) writer.add_text("config.json", config_text(options, num_labels, dtype));
  result.skipped = add_other_files(writer, options.base, /*config=*/!head);
  writer.commit();
  return result;
}

}  // namespace tessera::programs
