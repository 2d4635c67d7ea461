// SPDX-License-Identifier: MIT
#pragma once
// Parts of config.json shared by all families.
#include <c10/core/ScalarType.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/decoder_config.h"

namespace tessera::config_json {

// Value of a key with several historical names; they must agree if more than one is present.
std::optional<int64_t> find_size(const Json& json, std::initializer_list<std::string_view> names);
int64_t size(const Json& json, std::initializer_list<std::string_view> names);  // required
std::optional<int64_t> token(const Json& json, std::string_view name);
double probability(const Json& json, std::string_view name, double fallback);
// Adds a notice if the model uses dropout in training.
void notice_dropout(DecoderConfig& config);
// Throws, with key and byte, unless a key has the only supported value.
void require(const Json& json, std::string_view name, bool value);

// Reads the whole file with the family of its "model_type". Rejects quantised weights,
// encoder-decoders and pruned heads.
DecoderConfig read(const Json& json);
std::string write(const DecoderConfig& config, ModelHead head, at::ScalarType dtype);

}  // namespace tessera::config_json
