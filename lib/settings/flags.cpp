// SPDX-License-Identifier: MIT
#include "lib/settings/flags.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lib/core/file.h"
#include "lib/core/joined.h"
#include "lib/core/nearest.h"
#include "lib/core/terminal.h"
#include "lib/core/version_flag.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

template <typename... Parts>
[[noreturn]] void usage_error(const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, parts...);
}

std::string normalised(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Name of a type in messages.
const char* kind_of(const FieldRef& target) {
  if (std::holds_alternative<bool*>(target)) return "true or false";
  if (std::holds_alternative<uint64_t*>(target)) return "an integer from 0";
  if (std::holds_alternative<double*>(target)) return "a number";
  if (std::holds_alternative<StepInterval*>(target)) return "a number of steps";
  return is_text(target) ? "text" : "an integer";
}

// The terminal's width if narrower, also when standard error only is one, since help may go through
// a pager.
size_t help_width() {
  constexpr size_t kLeast = 60;
  size_t columns = columns_of_terminal(stdout);
  if (columns == 0) columns = columns_of_terminal(stderr);
  return columns == 0 ? kHelpWidth : std::clamp(columns, kLeast, kHelpWidth);
}

// Throws for invalid UTF-8: records are JSON.
void check_text(const std::string& argument) {
  const size_t valid = utf8_valid_prefix(argument);
  if (valid == argument.size()) return;
  usage_error("argument '", utf8_text(argument), "': byte ", valid,
              " is not valid UTF-8; records are JSON, so names of files must be UTF-8");
}

bool is_help(const std::string& argument) {
  return argument == "-h" || argument == "--help" || argument.starts_with("--help=");
}

const char* type_of(const FieldRef& target) {
  if (std::holds_alternative<bool*>(target)) return "bool";
  if (std::holds_alternative<double*>(target)) return "float";
  if (std::holds_alternative<StepInterval*>(target)) return "int or float";
  return is_text(target) ? "text" : "int";
}

}  // namespace

FlagSet::FlagSet(std::string program, std::string summary)
    : program_(std::move(program)), summary_(std::move(summary)) {
  section("General");
  add("config", &config_file_, "JSON file of the same names; the command line wins over it");
  add("print_config", &print_config_, "print every value with its origin, and stop");
  add("help", &topic_,
      "print the flags that matter most, and stop; all: every flag; a flag's name: what it does");
  add("version", &version_, "print the version, LibTorch's and the transports, and stop");
}

void FlagSet::section(const std::string& title) { section_ = title; }

void FlagSet::add(const std::string& name, FieldRef target, const std::string& help,
                  std::vector<std::string> choices, const std::string& brief,
                  const std::string& range) {
  if (choices.empty()) choices = names_of(target);
  flags_.push_back(
      {name, help, section_, brief, range, target, std::move(choices), text_of(target)});
}

std::string FlagSet::Flag::expected() const {
  if (const auto* choice = std::get_if<Choice>(&target)) return joined(choice->names());
  return range.empty() ? kind_of(target) : concat(kind_of(target), ", ", range);
}

std::string FlagSet::Flag::json(const std::string& text) const {
  return is_text(target) ? JsonWriter().value(text).text() : text;
}

const FlagSet::Flag* FlagSet::lookup(const std::string& name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

FlagSet::Flag* FlagSet::lookup(const std::string& name) {
  return const_cast<Flag*>(std::as_const(*this).lookup(name));
}

void FlagSet::unknown(const std::string& name) const {
  std::vector<std::string> names;
  for (const Flag& flag : flags_) names.push_back("--" + flag.name);
  usage_error("unknown flag --", name, nearest_hint("--" + name, names), " (", program_,
              " --help all lists them)");
}

std::optional<FlagSet::Setting> FlagSet::resolve(const std::string& name, const std::string& value,
                                                 const std::string& origin) {
  Flag* flag = lookup(name);
  std::string known;
  const ForeignFlag* foreign =
      find_foreign_ != nullptr ? find_foreign_(name, value, &known) : nullptr;
  // A name of ours may have foreign values.
  const bool ours = foreign == nullptr || foreign->value == std::string("*");
  if (ours && flag != nullptr) return Setting{flag, value};
  if (foreign == nullptr && known.empty()) unknown(name);
  const std::string written = concat("--", name, " ", value);
  if (foreign == nullptr) {
    usage_error("--", name, " (", origin, "): '", value, "' is not one of ", known);
  }
  switch (foreign->meaning) {
    case ForeignFlag::kSets:
      break;
    case ForeignFlag::kNeeds:
      needs_.emplace_back(written, foreign->flag);
      return std::nullopt;
    case ForeignFlag::kNoEffect:
      notices_.push_back(concat(written, " has no effect here: ", foreign->text));
      return std::nullopt;
    case ForeignFlag::kRefused:
      usage_error(written, " is not available here: ", foreign->text);
  }
  flag = lookup(foreign->flag);
  if (flag == nullptr) usage_error(written, " is not available in ", program_);
  return Setting{flag, foreign->to == std::string("*") ? value : foreign->to};
}

void FlagSet::check_needs() const {
  for (const auto& [written, flag] : needs_) {
    if (!given(flag)) usage_error(written, " needs --", flag, " N");
  }
}

void FlagSet::set(Flag& flag, const std::string& text, const std::string& origin) {
  if (!flag.choices.empty() &&
      std::find(flag.choices.begin(), flag.choices.end(), text) == flag.choices.end()) {
    usage_error("--", flag.name, " (", origin, "): '", text, "' is not one of ",
                joined(flag.choices), nearest_hint(text, flag.choices));
  }
  if (!set_text(flag.target, text)) {
    usage_error("--", flag.name, " (", origin, "): expected ", flag.expected(), ", found '", text,
                "'");
  }
  flag.origin = origin;
}

// The argument after a flag if it is its value; a switch may have none.
std::optional<std::string> FlagSet::value_after(const std::string& name,
                                                const std::vector<std::string>& arguments,
                                                size_t at) const {
  const Flag* flag = lookup(name);
  const bool follows = at + 1 < arguments.size() && !arguments[at + 1].starts_with("--");
  const bool is_switch = flag != nullptr && std::holds_alternative<bool*>(flag->target);
  if (follows && (!is_switch || parse_bool(arguments[at + 1]))) return arguments[at + 1];
  if (flag != nullptr && !is_switch) {
    usage_error("--", name, " needs a value: ", flag->expected());
  }
  return std::nullopt;
}

void FlagSet::parse(const std::vector<std::string>& arguments) {
  struct Given {
    std::string written;
    Setting setting;
  };
  std::vector<std::pair<std::string, std::string>> written;  // names and values
  std::string last;                                          // name
  const auto value_of = [&](const std::string& name) {
    return &std::ranges::find(written, name, &std::pair<std::string, std::string>::first)->second;
  };
  for (const std::string& argument : arguments) check_text(argument);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (is_help(argument)) {  // its value may be missing, and the last word may be a flag
      const size_t equals = argument.find('=');
      const bool follows = equals == std::string::npos && i + 1 < arguments.size() &&
                           (i + 2 == arguments.size() || !arguments[i + 1].starts_with("-"));
      ask_for_help(equals != std::string::npos ? argument.substr(equals + 1)
                   : follows                   ? arguments[++i]
                                               : "true");
      continue;
    }
    const bool is_flag = argument.size() >= 3 && argument.starts_with("--");
    if (!is_flag && !written.empty() && !argument.starts_with("-")) {
      const size_t end = static_cast<size_t>(
          std::find_if(arguments.begin() + static_cast<ptrdiff_t>(i), arguments.end(),
                       [](const std::string& word) { return word.starts_with("-"); }) -
          arguments.begin());
      take_words(last, *value_of(last),
                 {arguments.begin() + static_cast<ptrdiff_t>(i),
                  arguments.begin() + static_cast<ptrdiff_t>(end)});
      i = end - 1;
      continue;
    }
    if (!is_flag) {
      usage_error("unexpected argument '", argument, "'; flags are written --name value");
    }
    const size_t equals = argument.find('=');
    const std::string name =
        normalised(argument.substr(2, equals == std::string::npos ? equals : equals - 2));
    last = name;
    std::string value = "true";
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (const auto follows = value_after(name, arguments, i)) {
      value = *follows;
      ++i;
    }
    const auto earlier = std::ranges::find(written, name, [](const auto& w) { return w.first; });
    if (earlier == written.end()) {
      written.emplace_back(name, value);
      continue;
    }
    if (earlier->second != value) {
      notices_.push_back(concat("--", name, " is given twice; the last one, ", value,
                                ", wins over ", earlier->second));
    }
    earlier->second = value;
  }
  std::vector<Given> given;
  for (const auto& [name, value] : written) {
    if (const auto setting = resolve(name, value, "command line")) {
      given.push_back({concat("--", name, " ", value), *setting});
    }
  }
  std::map<const Flag*, const Given*> first;
  for (const Given& item : given) {
    const auto [other, fresh] = first.emplace(item.setting.flag, &item);
    if (!fresh && other->second->setting.value != item.setting.value) {
      usage_error(other->second->written, " and ", item.written, " both set --",
                  item.setting.flag->name, "; give one of them");
    }
    set(*item.setting.flag, item.setting.value, "command line");
  }
  if (!config_file_.empty()) read_config_file(config_file_);
  if (!topic_.empty()) ask_for_help(std::string(topic_));
  check_needs();
}

std::vector<std::string> FlagSet::parse_known(const std::vector<std::string>& arguments) {
  std::vector<std::string> known, others;
  std::vector<std::string>* destination = &others;  // values follow their flag
  for (const std::string& argument : arguments) {
    if (argument.starts_with("--")) {
      const std::string name = normalised(argument.substr(2, argument.find('=', 2) - 2));
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

const FlagSet::Flag& FlagSet::existing(const std::string& name) const {
  const Flag* flag = lookup(name);
  check(flag != nullptr, ErrorCode::kInternal, "no flag is called ", name);
  return *flag;
}

const std::string& FlagSet::origin(const std::string& name) const { return existing(name).origin; }

std::vector<std::string> FlagSet::names() const {
  std::vector<std::string> all;
  for (const Flag& flag : flags_) all.push_back(flag.name);
  return all;
}

std::string FlagSet::text(const std::string& name) const { return text_of(existing(name).target); }

void FlagSet::set(const std::string& name, const std::string& text, const std::string& origin) {
  set(const_cast<Flag&>(existing(name)), text, origin);
}

void FlagSet::reset(const std::string& name) {
  Flag& flag = const_cast<Flag&>(existing(name));
  set_text(flag.target, flag.default_text);
  flag.origin = kDefault;
}

void FlagSet::ask_for_help(const std::string& topic) {
  const auto answer = parse_bool(topic);  // --help true, as for any switch
  help_ = answer.value_or(true);
  topic_ = answer ? "" : topic;
}

HelpRow FlagSet::row_of(const Flag& flag) const {
  return {.name = flag.name,
          .section = flag.section,
          .help = flag.help,
          .brief = flag.brief,
          .kind = type_of(flag.target),
          .default_value = flag.default_text,
          .choices = flag.choices,
          .is_switch = std::holds_alternative<bool*>(flag.target)};
}

std::string FlagSet::help_of(const std::string& name) const {
  if (const Flag* flag = lookup(name)) {
    return paragraph(row_of(*flag), facts_ ? facts_(name) : std::vector<std::string>());
  }
  std::string known;
  const ForeignFlag* foreign =
      find_foreign_ != nullptr ? find_foreign_(name, "true", &known) : nullptr;
  if (foreign == nullptr && known.empty()) unknown(name);
  std::string text = concat("--", name, "  (not a flag of tessera, but understood)\n  ");
  if (foreign == nullptr) return concat(text, "Values that are understood: ", known, "\n");
  text += concat("--", name, " true ");
  switch (foreign->meaning) {
    case ForeignFlag::kSets:
      return concat(text, "is --", foreign->flag, " ",
                    foreign->to == std::string("*") ? "true" : foreign->to, "\n",
                    lookup(foreign->flag) == nullptr ? "" : "\n" + help_of(foreign->flag));
    case ForeignFlag::kNeeds:
      return concat(text, "needs --", foreign->flag, "\n");
    case ForeignFlag::kNoEffect:
      return concat(text, "has no effect here: ", foreign->text, "\n");
    case ForeignFlag::kRefused:
      return concat(text, "is not available here: ", foreign->text, "\n");
  }
  return text;
}

std::string FlagSet::help() const {
  return version_ && !help_ ? version_text(program_) : help(topic_);
}

std::string FlagSet::help(const std::string& topic) const {
  if (!topic.empty() && topic != "all") {
    return help_of(normalised(topic.substr(std::min(topic.size(), topic.find_first_not_of('-')))));
  }
  HelpPage page{.program = program_, .summary = summary_, .example = example_, .rows = {}};
  for (const Flag& flag : flags_) page.rows.push_back(row_of(flag));
  if (find_foreign_ != nullptr) {
    page.end = {"Other TrainingArguments of Hugging Face are understood or answered."};
  }
  return topic.empty() && !example_.empty() ? one_screen(page) : all_sections(page, help_width());
}

std::string FlagSet::config_json(int indent) const {
  JsonWriter writer(indent);
  writer.begin_object();
  for (const Flag& flag : flags_) {
    if (flag.section == "General") continue;
    writer.key(flag.name).begin_object();
    writer.key("value").scalar(flag.json(text_of(flag.target)));
    writer.field("origin", flag.origin).end_object();
  }
  return writer.end_object().text();
}

std::string FlagSet::changed_text() const {
  std::string all;
  for (const Flag& flag : flags_) {
    if (!flag.changed()) continue;
    const std::string value = text_of(flag.target);
    const bool plain = value.find_first_of(" {}\"") == std::string::npos;
    all += concat(" --", flag.name, " ", plain ? value : "'" + value + "'");
  }
  return all;
}

std::string FlagSet::values_text() const {
  std::string text;
  for (const Flag& flag : flags_) {
    if (flag.section == "General") continue;
    text += "--" + flag.name + " " + flag.json(text_of(flag.target)) + "\n";
  }
  return text;
}

}  // namespace tessera::programs
