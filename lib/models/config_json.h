#pragma once
// Pieces of config.json that all architectures share.
#include <c10/core/ScalarType.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/language_model_config.h"

namespace tessera::config_json {

// Of a vocabulary or hidden size: products stay inside 64 bits.
constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxLayers = int64_t{1} << 16;  // each is an object of its own

// The value of a key that has had several names; they must agree when more than one is there.
std::optional<int64_t> find_size(const Json& json, std::initializer_list<std::string_view> names);
int64_t size(const Json& json, std::initializer_list<std::string_view> names);  // must be there
std::optional<int64_t> token(const Json& json, std::string_view name);
double probability(const Json& json, std::string_view name, double fallback);
// Tells the user that something is dropped in training, with the largest probability, unless 0.
void notice_dropout(LanguageModelConfig& config, double most);

// Refuses another model_type, quantized weights, encoder-decoders and pruned heads, and reads name,
// labels and initializer_range.
void read_common(const Json& json, std::string_view model_type, LanguageModelConfig& config);
// Refuses, with key and byte, a key whose value is not the only one that has been built.
void require(const Json& json, std::string_view name, bool value);

// Refuses, as Error(kInvalidArgument), sizes whose number of parameters (in floating point, where
// it cannot overflow) leaves 64 bits.
void check_parameter_count(const LanguageModelConfig& config, double parameters);

// config.validate(), as an error of the file.
template <typename Config>
void validate(const Json& json, const Config& config) {
  try {
    config.validate();
  } catch (const Error& error) {
    json.fail(error.what());
  }
}

// Everything transformers needs beside the architecture's own keys: begins the object; then `end`
// writes tokens, labels, initializer_range and dtype, and ends it.
void begin(JsonWriter& out, std::string_view model_type, std::string_view causal_class,
           std::string_view classifier_class, ModelHead head);
std::string end(JsonWriter& out, const LanguageModelConfig& config, ModelHead head,
                at::ScalarType dtype);

}  // namespace tessera::config_json
