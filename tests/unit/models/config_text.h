#pragma once
// Texts of config.json with one thing changed, and what becomes of them.
#include <map>
#include <string>

#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/language_model_config.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

namespace tessera::testing {

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

template <typename Config>
Config parse_config(const std::string& text) {
  return Config::from_json(Json::parse(text, {}, "config.json"));
}

// The error names the file and says what was expected.
template <typename Config>
void check_config_refused(const std::string& text, const std::string& expected) {
  const std::string message = error_of(ErrorCode::kDataLoss, [&] { parse_config<Config>(text); });
  CHECK_THAT(message, Catch::Matchers::Contains(expected));
  CHECK_THAT(message, Catch::Matchers::Contains("config.json"));
}

// Of the presets that are published, by name.
using Counts = std::map<std::string, int64_t>;
template <typename Config>
Counts published_parameters() {
  Counts counts;
  for (const std::string& name : Config::preset_names()) {
    const Config config = Config::preset(name);
    config.validate();
    if (!config.trial) counts[name] = config.parameter_count(ModelHead::kCausal);
  }
  return counts;
}

}  // namespace tessera::testing
