// SPDX-License-Identifier: MIT
#include "lib/program/manifest.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::program {
namespace {

constexpr int64_t kFormatVersion = 1, kLargestExtent = int64_t{1} << 40;

at::ScalarType dtype_named(const Json& json) {
  static const std::vector<std::pair<std::string, at::ScalarType>> names = {
      {"float32", at::kFloat},
      {"bfloat16", at::kBFloat16},
      {"float16", at::kHalf},
      {"float64", at::kDouble},
      {"int64", at::kLong},
      {"int32", at::kInt},
      {"int16", at::kShort},
      {"int8", at::kChar},
      {"uint8", at::kByte},
      {"bool", at::kBool},
      {"complex64", at::kComplexFloat}};
  const std::string name = json.as_string();
  for (const auto& [known, dtype] : names) {
    if (known == name) return dtype;
  }
  json.fail(concat("the dtype \"", name, "\" is not known"));
}

LossKind loss_named(const Json& json) {
  const std::string name = json.as_string();
  if (name == "causal") return LossKind::kCausal;
  if (name == "classification") return LossKind::kClassification;
  if (name == "mean") return LossKind::kMean;
  if (name == "sum_count") return LossKind::kSumCount;
  json.fail(concat("the loss \"", name,
                   "\" is not known; expected causal, classification, mean or sum_count"));
}

// A file of the directory itself.
std::string file_name(const Json& json) {
  std::string name = json.as_string();
  if (name.empty() || name == "." || name == ".." ||
      name.find_first_of("/\\") != std::string::npos) {
    json.fail(concat("\"", name, "\" is no file of the program's directory"));
  }
  return name;
}

std::vector<int64_t> shape_of(const Json& json) {
  std::vector<int64_t> shape;
  int64_t numel = 1;
  for (const Json& extent : json.items()) {
    shape.push_back(extent.as_int64(0, kLargestExtent));
    if (__builtin_mul_overflow(numel, std::max<int64_t>(shape.back(), 1), &numel) ||
        numel > kLargestExtent) {
      json.fail("the tensor is too large");
    }
  }
  return shape;
}

Init init_of(const Json& json, at::IntArrayRef shape) {
  const std::string kind = json.at("kind").as_string();
  Init init;
  if (kind == "normal") {
    init = {Init::Kind::kNormal, json.get("mean", 0.0), json.at("std").as_double()};
    if (init.second < 0) json.at("std").fail("expected at least 0");
  } else if (kind == "uniform") {
    init = {Init::Kind::kUniform, json.at("low").as_double(), json.at("high").as_double()};
    if (init.second < init.first) json.at("high").fail("expected at least low");
  } else if (kind == "constant") {
    init = {Init::Kind::kConstant, json.at("value").as_double()};
  } else if (kind == "tensor") {
    init.kind = Init::Kind::kTensor;
    init.constant = json.at("constant").as_string();
  } else {
    json.fail(concat("weights drawn as \"", kind, "\" are not known"));
  }
  if (const auto rows = json.find("zero_rows")) {
    if (shape.empty()) rows->fail("the parameter has no rows");
    for (const Json& row : rows->items()) init.zero_rows.push_back(row.as_int64(0, shape[0] - 1));
  }
  return init;
}

ParameterEntry parameter_of(const Json& json) {
  ParameterEntry entry{.name = json.at("name").as_string(),
                       .shape = shape_of(json.at("shape")),
                       .same_as = json.get("same_as", ""),
                       .trained = json.get("trained", true)};
  if (const auto stored = json.find("stored")) entry.stored = read_stored_form(*stored);
  if (const auto init = json.find("init")) entry.init = init_of(*init, entry.shape);
  return entry;
}

BufferEntry buffer_of(const Json& json) {
  return {.name = json.at("name").as_string(),
          .shape = shape_of(json.at("shape")),
          .dtype = dtype_named(json.at("dtype")),
          .persistent = json.get("persistent", false),
          .stored = json.get("stored", ""),
          .changes = json.get("changes", false)};
}

ProgramEntry program_of(const Json& json) {
  const std::string mode = json.at("mode").as_string();
  if (mode != "train" && mode != "eval") json.at("mode").fail("expected train or eval");
  return {dtype_named(json.at("dtype")), mode == "train", file_name(json.at("file"))};
}

// A number is fixed; a name is free, in the range that "ranges" gives it.
InputEntry::Range range_of(const Json& dim, const std::optional<Json>& ranges) {
  InputEntry::Range range;
  if (!dim.is_string()) {
    range.least = range.most = dim.as_int64(0, kLargestExtent);
    return range;
  }
  range.name = dim.as_string();
  const auto known = ranges ? ranges->find(range.name) : std::nullopt;
  if (!known) return range;
  if (!known->at(size_t{0}).is_null()) range.least = known->at(size_t{0}).as_int64();
  if (!known->at(1).is_null()) range.most = known->at(1).as_int64();
  return range;
}

InputEntry input_of(const Json& json, const std::optional<Json>& ranges) {
  InputEntry entry{.name = json.at("name").as_string()};
  for (const Json& dim : json.at("dims").items()) entry.dims.push_back(range_of(dim, ranges));
  return entry;
}

template <typename Entries>
void check_names(const Json& json, const Entries& entries) {
  std::set<std::string> names;
  for (const auto& entry : entries) {
    if (!names.insert(entry.name).second) json.fail(concat("\"", entry.name, "\" stands twice"));
  }
}

void check_ties(const Json& json, const Manifest& manifest) {
  for (const ParameterEntry& entry : manifest.parameters) {
    if (entry.same_as.empty()) continue;
    const ParameterEntry* owner = manifest.parameter(entry.same_as);
    if (owner == nullptr || !owner->same_as.empty() || owner->shape != entry.shape) {
      json.fail(concat("\"", entry.name, "\" is tied to \"", entry.same_as,
                       "\", which is no parameter of its own of the same shape"));
    }
  }
}

std::vector<std::string> names_of(const Json& json) {
  std::vector<std::string> names;
  for (const Json& entry : json.items()) names.push_back(entry.at("name").as_string());
  return names;
}

std::optional<double> auxiliary_weight(const Json& outputs, LossKind loss) {
  if (outputs.size() < 2 || outputs.at(1).at("name").as_string() != "auxiliary_loss") return {};
  if (loss != LossKind::kCausal && loss != LossKind::kClassification) {
    outputs.at(1).fail("only scores have an auxiliary loss beside them");
  }
  return outputs.at(1).at("weight").as_double();
}

template <typename Entry>
const Entry* find_entry(const std::vector<Entry>& entries, const std::string& name) {
  for (const Entry& entry : entries) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace

std::string hub_name(const ParameterEntry& entry) {
  if (entry.stored.kind != StoredForm::Kind::kTensor) return entry.name;
  return entry.name.ends_with("." + entry.stored.name) ? entry.name : entry.stored.name;
}

const ParameterEntry* Manifest::parameter(const std::string& wanted) const {
  return find_entry(parameters, wanted);
}

const BufferEntry* Manifest::buffer(const std::string& wanted) const {
  return find_entry(buffers, wanted);
}

Manifest read_manifest(const Json& json) {
  if (json.at("format").as_string() != "tessera.program") {
    json.at("format").fail("expected tessera.program");
  }
  if (json.at("version").as_int64() != kFormatVersion) {
    json.at("version").fail(concat("expected version ", kFormatVersion));
  }
  Manifest manifest;
  manifest.file = json.origin();
  manifest.name = json.at("name").as_string();
  manifest.model_type = json.get("model_type", "");
  manifest.loss = loss_named(json.at("loss"));
  for (const Json& entry : json.at("inputs").items()) {
    manifest.inputs.push_back(input_of(entry, json.find("ranges")));
  }
  check_names(json.at("inputs"), manifest.inputs);
  manifest.outputs = names_of(json.at("outputs"));
  if (manifest.outputs.empty()) json.at("outputs").fail("expected at least one result");
  manifest.auxiliary_weight = auxiliary_weight(json.at("outputs"), manifest.loss);
  for (const Json& entry : json.at("programs").items()) {
    manifest.programs.push_back(program_of(entry));
  }
  if (manifest.programs.empty()) json.at("programs").fail("expected at least one program");
  if (const auto constants = json.find("constants")) manifest.constants = file_name(*constants);
  for (const Json& path : json.at("layers").items()) manifest.layers.push_back(path.as_string());
  for (const Json& entry : json.at("parameters").items()) {
    manifest.parameters.push_back(parameter_of(entry));
  }
  for (const ParameterEntry& entry : manifest.parameters) {
    add_sliced_extents(entry.stored, manifest.sliced);
  }
  for (const Json& entry : json.at("buffers").items()) {
    manifest.buffers.push_back(buffer_of(entry));
  }
  check_names(json.at("parameters"), manifest.parameters);
  check_names(json.at("buffers"), manifest.buffers);
  check_ties(json.at("parameters"), manifest);
  return manifest;
}

}  // namespace tessera::program
