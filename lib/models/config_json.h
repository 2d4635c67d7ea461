// SPDX-License-Identifier: MIT
#pragma once
// Pieces of config.json that all families share.
#include <c10/core/ScalarType.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/decoder_config.h"

namespace tessera::config_json {

// The value of a key that has had several names; they must agree when more than one is there.
std::optional<int64_t> find_size(const Json& json, std::initializer_list<std::string_view> names);
int64_t size(const Json& json, std::initializer_list<std::string_view> names);  // must be there
std::optional<int64_t> token(const Json& json, std::string_view name);
double probability(const Json& json, std::string_view name, double fallback);
// Tells the user that something is dropped in training, unless nothing is.
void notice_dropout(DecoderConfig& config);
// Refuses, with key and byte, a key whose value is not the only one that has been built.
void require(const Json& json, std::string_view name, bool value);

// The whole file, by the family of its "model_type". Refuses quantized weights, encoder-decoders
// and pruned heads.
DecoderConfig read(const Json& json);
std::string write(const DecoderConfig& config, ModelHead head, at::ScalarType dtype);

}  // namespace tessera::config_json
