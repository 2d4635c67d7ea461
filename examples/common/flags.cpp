#include "examples/common/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <set>

#include "tessera/core/error.h"
#include "tessera/core/file.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

template <typename... Parts>
[[noreturn]] void usage_error(const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, parts...);
}

size_t edit_distance(const std::string& a, const std::string& b) {  // Levenshtein, one row
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

template <typename Number>
bool parse_number(const std::string& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_bool(const std::string& text, bool& value) {
  if (text != "true" && text != "false") return false;
  value = text == "true";
  return true;
}

std::string joined(const std::vector<std::string>& items, const char* between = ", ") {
  std::string text;
  for (const std::string& item : items) text += concat(text.empty() ? "" : between, item);
  return text;
}

std::string json_value(const FlagSet::Target& target) {
  return std::visit([](auto* value) { return JsonWriter().value(*value).text(); }, target);
}

// How a value of this kind is called in messages.
const char* kind_of(const FlagSet::Target& target) {
  constexpr const char* kKinds[] = {"true or false", "an integer", "an integer from 0", "a number",
                                    "text"};
  return kKinds[target.index()];
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  std::string best;
  size_t least = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    if (const size_t distance = edit_distance(name, candidate); distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

FlagSet::FlagSet(std::string program, std::string summary)
    : program_(std::move(program)), summary_(std::move(summary)) {
  section("General");
  add("config", &config_file_, "JSON file of the same names; the command line wins over it");
  add("print_config", &print_config_, "print every value with its origin, and stop");
  add("help", &help_, "print this text, and stop");
}

void FlagSet::section(const std::string& title) { section_ = title; }

void FlagSet::add(const std::string& name, Target target, const std::string& help,
                  std::vector<std::string> choices) {
  flags_.push_back({name, help, section_, target, std::move(choices), "", json_value(target)});
}

void FlagSet::add_unavailable(const std::string& name, const std::string& reason) {
  flags_.push_back({name, "", section_, {}, {}, reason, ""});
}

const FlagSet::Flag* FlagSet::lookup(const std::string& name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

FlagSet::Flag& FlagSet::find(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  if (const Flag* flag = lookup(name)) {
    if (!flag->unavailable.empty()) {
      usage_error("--", name, " is not available in this version: ", flag->unavailable);
    }
    return const_cast<Flag&>(*flag);
  }
  std::vector<std::string> names;
  for (const Flag& flag : flags_) {
    if (flag.unavailable.empty()) names.push_back(flag.name);
  }
  usage_error("unknown flag --", name, "; the nearest valid name is --", nearest_name(name, names),
              " (", program_, " --help lists all)");
}

void FlagSet::set(Flag& flag, const std::string& text, const std::string& origin) {
  if (!flag.choices.empty() &&
      std::find(flag.choices.begin(), flag.choices.end(), text) == flag.choices.end()) {
    usage_error("--", flag.name, " (", origin, "): '", text, "' is not one of ",
                joined(flag.choices), "; the nearest is ", nearest_name(text, flag.choices));
  }
  const bool parsed = std::visit(
      [&](auto* value) {
        using T = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<T, bool>) {
          return parse_bool(text, *value);
        } else if constexpr (std::is_same_v<T, std::string>) {
          *value = text;
          return true;
        } else if constexpr (std::is_same_v<T, double>) {
          return parse_number(text, *value) && std::isfinite(*value);
        } else {
          return parse_number(text, *value);
        }
      },
      flag.target);
  if (!parsed) {
    usage_error("--", flag.name, " (", origin, "): expected ", kind_of(flag.target), ", found '",
                text, "'");
  }
  flag.origin = origin;
}

void FlagSet::parse(const std::vector<std::string>& arguments) {
  struct Given {
    Flag* flag;
    std::string text;
  };
  std::vector<Given> given;
  std::set<std::string> seen;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "-h") {
      help_ = true;
      continue;
    }
    if (argument.size() < 3 || !argument.starts_with("--")) {
      usage_error("unexpected argument '", argument, "'; flags are written --name value");
    }
    const size_t equals = argument.find('=');
    Flag& flag = find(argument.substr(2, equals == std::string::npos ? equals : equals - 2));
    if (!seen.insert(flag.name).second) usage_error("--", flag.name, " is given twice");
    if (equals != std::string::npos) {
      given.push_back({&flag, argument.substr(equals + 1)});
    } else if (std::holds_alternative<bool*>(flag.target)) {
      bool ignored = false;
      const bool follows = i + 1 < arguments.size() && parse_bool(arguments[i + 1], ignored);
      given.push_back({&flag, follows ? arguments[++i] : "true"});
    } else {
      if (i + 1 == arguments.size() || arguments[i + 1].starts_with("--")) {
        usage_error("--", flag.name, " needs a value: ", kind_of(flag.target));
      }
      given.push_back({&flag, arguments[++i]});
    }
  }
  for (const Given& item : given) set(*item.flag, item.text, "command line");
  if (!config_file_.empty()) read_config_file(config_file_);
}

std::vector<std::string> FlagSet::parse_known(const std::vector<std::string>& arguments) {
  std::vector<std::string> known, others;
  std::vector<std::string>* destination = &others;  // values follow their flag
  for (const std::string& argument : arguments) {
    if (argument.starts_with("--")) {
      std::string name = argument.substr(2, argument.find('=', 2) - 2);
      std::replace(name.begin(), name.end(), '-', '_');
      const bool ours = lookup(name) != nullptr && name != "config" && name != "print_config";
      destination = ours ? &known : &others;
    } else if (argument == "-h") {
      destination = &known;
    }
    destination->push_back(argument);
  }
  parse(known);
  return others;
}

void FlagSet::read_config_file(const std::string& path) {
  const JsonLimits limits{
      .max_bytes = 1 << 20, .max_depth = 4, .error_code = ErrorCode::kInvalidArgument};
  std::string text;
  try {
    text = read_file(path, limits.max_bytes);
  } catch (const Error& error) {
    usage_error("--config: ", error.what());
  }
  const Json file = Json::parse(text, limits, path);
  if (!file.is_object()) file.fail("expected an object of flag names and values");
  for (const auto& [name, value] : file.members()) {
    Flag& flag = find(name);
    if (flag.name == "config") value.fail("a configuration file cannot name another one");
    if (!value.is_bool() && !value.is_number() && !value.is_string()) {
      value.fail("expected " + std::string(kind_of(flag.target)));
    }
    if (flag.origin != kDefault) continue;  // the command line wins
    set(flag, value.is_string() ? value.as_string() : value.dump(), path);
  }
}

const std::string& FlagSet::origin(const std::string& name) const {
  const Flag* flag = lookup(name);
  check(flag != nullptr, ErrorCode::kInternal, "no flag is called ", name);
  return flag->origin;
}

std::string FlagSet::help() const {
  std::string text = "Usage: " + program_ + " [--flag value | --flag=value]...\n" + summary_ + "\n";
  std::string section;
  for (const Flag& flag : flags_) {
    if (!flag.unavailable.empty()) continue;
    if (flag.section != section) text += "\n" + flag.section + ":\n";
    section = flag.section;
    std::string left = "  --" + flag.name;
    if (!flag.choices.empty()) {
      left += concat(" ", joined(flag.choices, "|"));
    }
    left.resize(std::max<size_t>(left.size() + 2, 36), ' ');
    text += left + flag.help;
    if (flag.default_text != "\"\"" && flag.default_text != "false") {
      text += " [" + flag.default_text + "]";
    }
    text += "\n";
  }
  return text;
}

std::string FlagSet::config_json(int indent) const {
  JsonWriter writer(indent);
  writer.begin_object();
  for (const Flag& flag : flags_) {
    if (!flag.unavailable.empty() || flag.section == "General") continue;
    writer.key(flag.name).begin_object();
    writer.key("value").scalar(json_value(flag.target));
    writer.field("origin", flag.origin).end_object();
  }
  return writer.end_object().text();
}

std::string FlagSet::values_text() const {
  std::string text;
  for (const Flag& flag : flags_) {
    if (!flag.unavailable.empty() || flag.section == "General") continue;
    text += "--" + flag.name + " " + json_value(flag.target) + "\n";
  }
  return text;
}

}  // namespace tessera::programs
