#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/bloom.h"

namespace tessera {
namespace {

struct Preset {
  std::string_view name;
  int64_t hidden, layers, heads, vocabulary;
};
constexpr std::array kPresets = {
    Preset{"bloom-560m", 1024, 24, 16, 250'880}, Preset{"bloom-1b7", 2048, 24, 16, 250'880},
    Preset{"bloom-3b", 2560, 30, 32, 250'880},   Preset{"bloom-7b1", 4096, 30, 32, 250'880},
    Preset{"bloom-tiny", 64, 2, 4, 1024},        Preset{"bloom-mini", 96, 4, 6, 1024},
    Preset{"bloom-small", 256, 4, 8, 4096},
};
constexpr int64_t kMaxSize = int64_t{1}
                             << 24;  // of a vocabulary or hidden size: products stay inside 64 bits

// The value of a key that has had several names; they must agree when more than one is there.
int64_t positive(const Json& json, std::initializer_list<std::string_view> names) {
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

std::vector<std::string> read_labels(const Json& json) {
  const auto table = json.find("id2label");
  const auto count = json.find("num_labels");
  if (!table) {
    std::vector<std::string> labels;
    const int64_t n = count ? count->as_int64(1, 1'000'000) : 0;
    for (int64_t i = 0; i < n; ++i) labels.push_back(concat("LABEL_", i));
    return labels;
  }
  const auto members = table->members();
  std::vector<std::string> labels(members.size());
  std::vector<bool> seen(members.size(), false);
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
  }
  if (count && count->as_int64() != static_cast<int64_t>(labels.size())) {
    count->fail(concat("contradicts id2label, which has ", labels.size(), " classes"));
  }
  return labels;
}

}  // namespace

BloomConfig BloomConfig::preset(const std::string& name) {
  const std::string known = name == "bloom-7b" ? "bloom-7b1" : name;
  std::string names;
  for (const auto& preset : kPresets) {
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
    if (preset.name != known) continue;
    BloomConfig config;
    config.name = known;
    config.hidden = preset.hidden;
    config.layers = preset.layers;
    config.heads = preset.heads;
    config.vocabulary = preset.vocabulary;
    if (known != name)
      config.notices = {concat("\"", name, "\" is no published name: using ", known)};
    return config;
  }
  fail(ErrorCode::kInvalidArgument, "unknown model configuration \"", name, "\"; known are ",
       names);
}

std::vector<std::string> BloomConfig::preset_names() {
  std::vector<std::string> names;
  for (const auto& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

BloomConfig BloomConfig::from_file(const std::string& path) {
  return from_json(Json::parse_file(path));
}

BloomConfig BloomConfig::from_json(const Json& json) {
  const Json type = json.at("model_type");
  if (type.as_string() != "bloom") {
    type.fail("expected \"bloom\", found \"" + type.as_string() + "\"");
  }
  if (const auto quantized = json.find("quantization_config")) {
    quantized->fail("quantized weights cannot be trained; use the fp32, bf16 or fp16 model");
  }
  BloomConfig config;
  config.name = json.get("_name_or_path", "bloom");
  if (config.name.empty()) config.name = "bloom";
  config.vocabulary = positive(json, {"vocab_size"});
  config.hidden = positive(json, {"hidden_size", "n_embed"});
  config.layers = positive(json, {"n_layer", "num_hidden_layers"});
  config.heads = positive(json, {"n_head", "num_attention_heads"});
  if (const auto inner = json.find("n_inner"); inner && inner->as_int64() != 4 * config.hidden) {
    inner->fail(concat("BLOOM's inner size is 4 * hidden_size = ", 4 * config.hidden));
  }
  config.layer_norm_epsilon = json.get("layer_norm_epsilon", 1e-5);
  config.initializer_range = json.get("initializer_range", 0.02);
  config.residual_post_layernorm = json.get("apply_residual_connection_post_layernorm", false);
  config.tied_head = json.get("tie_word_embeddings", true);
  config.bos_token = token(json, "bos_token_id");
  config.eos_token = token(json, "eos_token_id");
  config.pad_token = token(json, "pad_token_id");
  config.labels = read_labels(json);
  for (const char* key : {"hidden_dropout", "attention_dropout"}) {
    const double probability = json.get(key, 0.0);
    if (probability == 0.0) continue;
    config.notices.push_back(concat(json.origin(), ": ", key, " is ", probability,
                                    "; training runs without dropout, as if it were 0"));
  }
  try {
    config.validate();
  } catch (const Error& error) {
    json.fail(error.what());
  }
  return config;
}

void BloomConfig::validate() const {
  auto in_range = [&](const char* what, int64_t value) {
    check(value >= 1 && value <= kMaxSize, ErrorCode::kInvalidArgument, "model ", name, ": ", what,
          " must be between 1 and ", kMaxSize, ", not ", value);
  };
  in_range("vocabulary", vocabulary);
  in_range("hidden size", hidden);
  in_range("number of layers", layers);
  in_range("number of heads", heads);
  check(hidden % heads == 0, ErrorCode::kInvalidArgument, "model ", name, ": hidden size ", hidden,
        " is not a multiple of ", heads, " heads");
  check(layer_norm_epsilon > 0 && layer_norm_epsilon < 1, ErrorCode::kInvalidArgument, "model ",
        name, ": layer_norm_epsilon must be between 0 and 1, not ", layer_norm_epsilon);
  check(initializer_range >= 0 && initializer_range < 100, ErrorCode::kInvalidArgument, "model ",
        name, ": initializer_range must not be negative, found ", initializer_range);
}

int64_t BloomConfig::parameter_count(BloomHead head, int64_t num_labels) const {
  const int64_t body =
      vocabulary * hidden + layers * (12 * hidden * hidden + 13 * hidden) + 4 * hidden;
  if (head == BloomHead::kClassification) return body + num_labels * hidden;
  return tied_head ? body : body + vocabulary * hidden;
}

std::string BloomConfig::to_json(BloomHead head, at::ScalarType dtype) const {
  const bool causal = head == BloomHead::kCausal;
  check(causal || !labels.empty(), ErrorCode::kInvalidArgument, "model ", name,
        ": config.json of a classifier needs the names of its labels");
  const std::string dtype_name = dtype == at::kHalf       ? "float16"
                                 : dtype == at::kBFloat16 ? "bfloat16"
                                                          : "float32";
  JsonWriter out(2);
  out.begin_object();
  out.key("architectures").begin_array();
  out.value(causal ? "BloomForCausalLM" : "BloomForSequenceClassification").end_array();
  out.field("model_type", "bloom");
  out.field("vocab_size", vocabulary);
  out.field("hidden_size", hidden);
  out.field("n_layer", layers);
  out.field("n_head", heads);
  out.field("layer_norm_epsilon", layer_norm_epsilon);
  out.field("initializer_range", initializer_range);
  out.field("apply_residual_connection_post_layernorm", residual_post_layernorm);
  out.field("tie_word_embeddings", tied_head);
  out.field("hidden_dropout", 0.0).field("attention_dropout", 0.0);
  auto token_field = [&](const char* key, const std::optional<int64_t>& id) {
    out.key(key);
    id ? out.value(*id) : out.null();
  };
  token_field("bos_token_id", bos_token);
  token_field("eos_token_id", eos_token);
  token_field("pad_token_id", pad_token);
  if (!causal) {
    out.key("id2label").begin_object();
    for (size_t i = 0; i < labels.size(); ++i) out.field(std::to_string(i), labels[i]);
    out.end_object();
    out.key("label2id").begin_object();
    for (size_t i = 0; i < labels.size(); ++i) out.field(labels[i], i);
    out.end_object();
  }
  out.field("dtype", dtype_name).field("torch_dtype", dtype_name);
  out.end_object();
  return out.text() + "\n";
}

}  // namespace tessera
