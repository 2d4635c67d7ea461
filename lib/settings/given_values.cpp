// SPDX-License-Identifier: MIT
// Values from several words after a flag, or from a file.
#include <string>
#include <vector>

#include "lib/core/file.h"
#include "lib/core/joined.h"
#include "lib/settings/flags.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

template <typename... Parts>
[[noreturn]] void value_error(const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, parts...);
}

// Language of a configuration file that is not JSON; "" for JSON.
std::string other_language(const std::string& path, const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos || text[first] == '{') return "";
  if (path.ends_with(".toml")) return "TOML";
  return path.ends_with(".yaml") || path.ends_with(".yml") ? "YAML" : "";
}

}  // namespace

// Words after a flag that already has its value; foreign flags take several, joined into one value.
void FlagSet::take_words(const std::string& name, std::string& value,
                         const std::vector<std::string>& words) const {
  const Flag* flag = lookup(name);
  if (flag == nullptr) {
    value += " " + joined(words, " ");
    return;
  }
  const std::string wrong = concat("unexpected argument '", words.front(), "' behind --", name, " ",
                                   value, "; --", name, " takes one ");
  if (name.ends_with("_file") || name.ends_with("_ids")) {
    value_error(wrong, "file: join them under a name of the same ending, cat ", value, " ",
                joined(words, " "), " > ALL");
  }
  if (is_text(flag->target) && flag->choices.empty()) {
    value_error(wrong, "value: write a list with commas (--", name, " ", value, ",",
                joined(words, ","), "), a text with blanks in quotation marks");
  }
  const std::vector<std::string>& choices = flag->choices;
  value_error(wrong, "value: ", choices.empty() ? flag->expected() : joined(choices));
}

void FlagSet::read_config_file(const std::string& path) {
  const JsonLimits limits{
      .max_bytes = 1 << 20, .max_depth = 4, .error_code = ErrorCode::kInvalidArgument};
  std::string text;
  try {
    text = read_file(path, limits.max_bytes);
  } catch (const Error& error) {
    value_error("--config: ", error.what());
  }
  const std::string language = other_language(path, text);
  if (!language.empty()) {
    value_error("--config ", path, ": ", language,
                " is not read; write the same names and values as JSON: {\"max_steps\": 100, ...}");
  }
  const Json file = Json::parse(text, limits, path);
  if (!file.is_object()) file.fail("expected an object of flag names and values");
  for (const auto& [name, value] : file.members()) {
    if (name == "config") value.fail("a configuration file cannot name another one");
    if (!value.is_bool() && !value.is_number() && !value.is_string()) {
      const Flag* flag = lookup(name);
      if (flag == nullptr) unknown(name);
      const bool list = value.is_array() && is_text(flag->target) && flag->choices.empty();
      value.fail(concat("expected ", flag->expected(), list ? ", a list with commas" : ""));
    }
    const auto setting = resolve(name, value.is_string() ? value.as_string() : value.dump(), path);
    // The command line overrides.
    if (!setting || setting->flag->origin == "command line") continue;
    set(*setting->flag, setting->value, path);
  }
}

}  // namespace tessera::programs
