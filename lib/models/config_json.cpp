// SPDX-License-Identifier: MIT
#include "lib/models/config_json.h"

#include <algorithm>
#include <set>

#include "lib/models/decoder_family.h"
#include "tessera/core/error.h"

namespace tessera {
namespace config_json {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxClasses = int64_t{1} << 16;

std::vector<std::string> read_labels(const Json& json) {
  const auto table = json.find("id2label");
  const auto count = json.find("num_labels");
  if (!table) {
    std::vector<std::string> labels;
    const int64_t n = count ? count->as_int64(1, kMaxClasses) : 0;
    for (int64_t i = 0; i < n; ++i) labels.push_back(concat("LABEL_", i));
    return labels;
  }
  const auto members = table->members();
  std::vector<std::string> labels(members.size());
  std::vector<bool> seen(members.size(), false);
  std::set<std::string> names;
  for (const auto& [key, name] : members) {
    size_t id = 0;
    const bool digits = !key.empty() && key.size() < 8 &&
                        std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; });
    if (digits) id = std::stoul(key);
    if (!digits || id >= labels.size() || seen[id]) {
      name.fail(concat("class numbers must be 0 to ", labels.size() - 1, ", each once"));
    }
    seen[id] = true;
    labels[id] = name.as_string();
    if (!names.insert(labels[id]).second) name.fail("two classes have this name");
  }
  if (count && count->as_int64() != static_cast<int64_t>(labels.size())) {
    count->fail(concat("contradicts id2label, which has ", labels.size(), " classes"));
  }
  return labels;
}

}  // namespace

std::optional<int64_t> find_size(const Json& json, std::initializer_list<std::string_view> names) {
  std::optional<int64_t> value;
  for (const auto name : names) {
    const auto found = json.find(name);
    if (!found) continue;
    const int64_t here = found->as_int64(1, kMaxSize);
    if (value && *value != here) {
      found->fail(concat("contradicts \"", *names.begin(), "\": ", here, " against ", *value));
    }
    value = here;
  }
  return value;
}

int64_t size(const Json& json, std::initializer_list<std::string_view> names) {
  const auto value = find_size(json, names);
  if (!value) json.fail(concat("key \"", *names.begin(), "\" is missing"));
  return *value;
}

std::optional<int64_t> token(const Json& json, std::string_view name) {
  auto found = json.find(name);
  if (!found) return std::nullopt;
  if (found->is_array()) {  // some files list several end tokens; the first is the model's own
    if (found->size() == 0) return std::nullopt;
    found = found->at(0);
  }
  const int64_t id = found->as_int64();
  return id < 0 ? std::nullopt : std::optional(id);
}

double probability(const Json& json, std::string_view name, double fallback) {
  const double value = json.get(name, fallback);
  if (!(value >= 0 && value < 1)) json.at(name).fail("expected a probability below 1");
  return value;
}

void notice_dropout(DecoderConfig& config) {
  const double most =
      std::max({config.embedding_dropout, config.attention_dropout, config.residual_dropout});
  if (most == 0) return;
  config.notices.push_back(concat("model ", config.name, " drops out up to ", most,
                                  " in training: losses of layouts with ",
                                  "other data ranks or micro-batches differ by what is drawn"));
}

void require(const Json& json, std::string_view name, bool value) {
  if (json.get(name, value) == value) return;
  json.at(name).fail(concat("only ", value ? "true" : "false", " is supported"));
}

DecoderConfig read(const Json& json) {
  const Json type = json.at("model_type");
  const DecoderFamily* found = find_family(type.as_string());
  if (found == nullptr) type.fail(unknown_family(type.as_string()));
  const DecoderFamily& family = *found;
  DecoderConfig config = family.defaults;
  // Files of gpt-oss' experts in MXFP4 are decoded as they are read.
  const auto decodes = [&](const Json& quantized) {
    return family.model_type == "gpt_oss" && quantized.get("quant_method", "") == "mxfp4";
  };
  if (const auto quantized = json.find("quantization_config"); quantized && !decodes(*quantized)) {
    quantized->fail("quantized weights cannot be trained; use the fp32, bf16 or fp16 model");
  }
  if (const auto pruned = json.find("pruned_heads"); pruned && pruned->size() > 0) {
    pruned->fail("models with pruned heads are not supported");
  }
  require(json, "is_encoder_decoder", false);
  const std::string name = json.get("_name_or_path", "");
  if (!name.empty()) config.name = name;
  config.initializer_range = json.get("initializer_range", 0.02);
  config.labels = read_labels(json);
  config.vocabulary = size(json, {"vocab_size"});
  config.bos_token = token(json, "bos_token_id");
  config.eos_token = token(json, "eos_token_id");
  config.pad_token = token(json, "pad_token_id");
  family.read(json, config);
  try {
    config.validate();
  } catch (const Error& error) {
    json.fail(error.what());
  }
  notice_dropout(config);
  return config;
}

std::string write(const DecoderConfig& config, ModelHead head, at::ScalarType dtype) {
  const DecoderFamily& family = family_of(config);
  const bool causal = head == ModelHead::kCausal;
  check(causal || !config.labels.empty(), ErrorCode::kInvalidArgument, "model ", config.name,
        ": config.json of a classifier needs the names of its labels");
  JsonWriter out(2);
  out.begin_object();
  out.key("architectures").begin_array();
  out.value(causal ? family.causal_class : family.classifier_class).end_array();
  out.field("model_type", family.model_type);
  out.field("vocab_size", config.vocabulary);
  family.write(out, config);
  out.field("initializer_range", config.initializer_range);
  out.field("tie_word_embeddings", config.tied_head);
  auto token_field = [&](const char* key, const std::optional<int64_t>& id) {
    out.key(key);
    id ? out.value(*id) : out.null();
  };
  token_field("bos_token_id", config.bos_token);
  token_field("eos_token_id", config.eos_token);
  token_field("pad_token_id", config.pad_token);
  if (!causal) {
    out.key("id2label").begin_object();
    for (size_t i = 0; i < config.labels.size(); ++i) {
      out.field(std::to_string(i), config.labels[i]);
    }
    out.end_object();
    out.key("label2id").begin_object();
    for (size_t i = 0; i < config.labels.size(); ++i) out.field(config.labels[i], i);
    out.end_object();
  }
  const std::string dtype_name = dtype == at::kHalf       ? "float16"
                                 : dtype == at::kBFloat16 ? "bfloat16"
                                                          : "float32";
  out.field("dtype", dtype_name).field("torch_dtype", dtype_name);
  out.end_object();
  return out.text() + "\n";
}

}  // namespace config_json

}  // namespace tessera
