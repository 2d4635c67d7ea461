// SPDX-License-Identifier: MIT
#pragma once
// config.json texts with one change, and the result of reading them.
#include <map>
#include <string>

#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/language_model.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

namespace tessera::testing {

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

inline DecoderConfig parse_config(const std::string& text) {
  return LanguageModel::from_json(Json::parse(text, {}, "config.json")).config();
}

// The error names the file and the expectation.
inline void check_config_refused(const std::string& text, const std::string& expected) {
  const std::string message = error_of(ErrorCode::kDataLoss, [&] { parse_config(text); });
  CHECK_THAT(message, test::contains(expected));
  CHECK_THAT(message, test::contains("config.json"));
}

inline std::string written(const DecoderConfig& config, ModelHead head,
                           at::ScalarType dtype = at::kFloat) {
  return LanguageModel(config).to_json(head, dtype);
}

// Parameter counts of a family's published presets, by name.
using Counts = std::map<std::string, int64_t>;
inline Counts published_parameters(const std::string& family) {
  Counts counts;
  for (const std::string& name : LanguageModel::preset_names()) {
    const LanguageModel model = LanguageModel::preset(name);
    model.validate();
    if (model.config().model_type != family || model.config().trial) continue;
    counts[name] = model.parameter_count(ModelHead::kCausal);
  }
  return counts;
}

}  // namespace tessera::testing
