// SPDX-License-Identifier: MIT
#include "lib/interop/deepspeed_file.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "lib/core/nearest.h"
#include "lib/interop/deepspeed_keys.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

constexpr size_t kMostHints = 100, kLongestKey = 256;
constexpr double kMostCount = 0x1p53;  // every integer up to here is an exact double

// End of the comment at `at`; `at` itself if there is none.
size_t after_comment(const std::string& text, size_t at) {
  if (text.compare(at, 2, "/*") == 0) {
    const size_t end = text.find("*/", at + 2);
    return end == text.npos ? text.size() : end + 2;
  }
  if (text[at] != '#' && text.compare(at, 2, "//") != 0) return at;
  return std::min(text.find('\n', at), text.size());
}

size_t after_string(const std::string& text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return std::min(at + 1, text.size());
}

void blank(std::string& text, size_t begin, size_t end) {
  std::replace_if(
      text.begin() + static_cast<std::ptrdiff_t>(begin),
      text.begin() + static_cast<std::ptrdiff_t>(end), [](char c) { return c != '\n'; }, ' ');
}

// Offsets of line ends, used by line_at().
std::vector<size_t> line_ends(const std::string& text) {
  std::vector<size_t> ends;
  for (size_t at = text.find('\n'); at != text.npos; at = text.find('\n', at + 1)) {
    ends.push_back(at);
  }
  return ends;
}

int64_t line_at(const std::vector<size_t>& ends, size_t offset) {
  return 1 + (std::ranges::lower_bound(ends, offset) - ends.begin());
}

bool is_off(const Json& value, const std::string& name) {
  if (value.is_bool()) return !value.as_bool();
  if (value.is_number()) return value.as_double() <= (name.ends_with("size") ? 1 : 0);
  if (!value.is_object()) return false;
  const auto enabled = value.find("enabled");
  if (!enabled) return value.size() == 0;
  return enabled->is_string() ? enabled->as_string() == "auto" : is_off(*enabled, name);
}

// Why a value is not of this kind; "" if it is.
std::string complaint(const Json& value, DeepSpeedKey::Kind kind) {
  const auto instead = [&](const char* due) {
    std::string found = value.is_string() ? "the text " + value.dump() : value.dump();
    if (found.size() > 60) found = json_type_name(value.type());
    std::string text = concat(found, " stands where ", due, " is due");
    if (value.is_string() && kind != DeepSpeedKey::kSection) text += "; leave out the quotes";
    return text;
  };
  switch (kind) {
    case DeepSpeedKey::kSwitch:
      return value.is_bool() ? "" : instead("true or false");
    case DeepSpeedKey::kCount:
      if (!value.is_number()) return instead("an integer");
      if (value.as_double() > kMostCount) return instead("an integer up to 2^53");
      return value.as_double() >= 0 && std::floor(value.as_double()) == value.as_double()
                 ? ""
                 : instead("an integer from 0");
    case DeepSpeedKey::kNumber:
      return value.is_number() ? "" : instead("a number");
    case DeepSpeedKey::kText:
      return value.is_string() ? "" : instead("a text");
    case DeepSpeedKey::kBetas: {
      const bool pair = value.is_array() && value.size() == 2 && value.at(size_t{0}).is_number() &&
                        value.at(size_t{1}).is_number();
      return pair ? "" : instead("a pair of numbers");
    }
    case DeepSpeedKey::kSection:
      return value.is_object() ? "" : instead("a section { ... }");
    case DeepSpeedKey::kAnything:
      break;
  }
  return "";
}

// True for comment keys: DeepSpeed ignores unknown top-level keys.
bool is_comment(const std::string& key) {
  return key.starts_with("_") || key.starts_with("//") || key.starts_with("#") || key == "comment";
}

// True for keys of an unsupported optimizer or scheduler, which are ignored.
bool is_of_another(const Json& section, const std::string& key) {
  const auto type = section.find("type");
  if (!type || !type->is_string()) return false;
  const std::string name = type->as_string();
  const std::vector<std::string>& schedulers = deepspeed_schedulers();
  return (key == "optimizer.params" && deepspeed_optimizer(name) == nullptr) ||
         (key == "scheduler.params" && std::ranges::find(schedulers, name) == schedulers.end());
}

int lower(unsigned char c) { return std::tolower(c); }

// Whether `text` is one of "a|b|c".
bool is_one_of(const std::string& text, const std::string& choices) {
  return ("|" + choices + "|").find("|" + text + "|") != std::string::npos;
}

}  // namespace

std::string plain_json(std::string text, std::vector<int64_t>* lines) {
  const std::vector<size_t> ends = line_ends(text);
  size_t comma = text.npos;  // the last comma followed by white space only
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (const size_t end = after_comment(text, at); end != at) {
      lines->push_back(line_at(ends, at));
      blank(text, at, end);
      at = end;
    } else if (c == '"') {
      at = after_string(text, at);
      comma = text.npos;
    } else {
      if ((c == '}' || c == ']') && comma != text.npos) {
        lines->push_back(line_at(ends, comma));
        text[comma] = ' ';
      }
      if (!std::isspace(static_cast<unsigned char>(c))) comma = c == ',' ? at : text.npos;
      ++at;
    }
  }
  return text;
}

const OptimizerRow* deepspeed_optimizer(const std::string& type) {
  const auto is_type = [&](const char* name) {
    return std::ranges::equal(type, std::string_view(name), {}, lower, lower);
  };
  for (const OptimizerRow& row : optimizer_table()) {
    if (std::ranges::any_of(row.deepspeed.types, is_type)) return &row;
  }
  return nullptr;
}

const std::vector<std::string>& deepspeed_schedulers() {
  static const std::vector<std::string> names{"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};
  return names;
}

std::string DeepSpeedFile::Value::text() const {
  if (json.is_bool()) return json.as_bool() ? "cpu" : "none";
  return json.as_string();
}

DeepSpeedFile DeepSpeedFile::parse(std::string text, const std::string& path,
                                   const std::function<bool(const std::string&)>& is_flag) {
  DeepSpeedFile file;
  file.path_ = path;
  file.is_flag_ = is_flag;
  std::vector<int64_t> lines;
  const std::string plain = plain_json(std::move(text), &lines);
  file.line_ends_ = line_ends(plain);
  if (!lines.empty()) {
    file.notes_.push_back(
        {.line = lines.front(),
         .text = concat("comments and trailing commas are accepted (", lines.size(), ")")});
  }
  try {
    const Json root = Json::parse(plain, {.max_bytes = kMostBytes, .max_depth = 16}, path);
    if (root.is_object()) {
      file.walk(root, "", "");
      check_deepspeed(file);
    } else {
      file.add_finding({.line = 1, .text = "expected a section { ... }"});
    }
  } catch (const Error& error) {  // "path: line 3, byte 9: not accepted as JSON: ..."
    const std::string text = std::string(error.what()).substr(path.size() + 2);
    const bool has_line = text.starts_with("line ");
    file.add_finding({.line = has_line ? std::stoll(text.substr(5)) : 1,
                      .text = has_line ? text.substr(text.find(' ', 5) + 1) : text});
  }
  file.is_flag_ = nullptr;  // belongs to the caller
  return file;
}

int64_t DeepSpeedFile::line_of(const Json& value) const {
  return line_at(line_ends_, value.offset());
}

// section: current name; written: name in the file.
void DeepSpeedFile::walk(const Json& object, const std::string& section,
                         const std::string& written) {
  for (const auto& [name, value] : object.members()) {
    const std::string key = section.empty() ? name : section + "." + name;
    const std::string shown = written.empty() ? name : written + "." + name;
    if (find_deepspeed_key(key) == nullptr) {
      unknown(value, name, section, shown);
    } else if (!value.is_null() && !is_of_another(object, key)) {
      take(value, key, shown);
    }
  }
}

void DeepSpeedFile::unknown(const Json& value, const std::string& name, const std::string& section,
                            const std::string& shown) {
  Remark remark{.line = line_of(value), .key = shown};
  if (section.empty() && is_comment(name)) {
    remark.text = concat(name, " is a comment");
    notes_.push_back(remark);
    return;
  }
  remark.text = section.empty() ? concat("\"", name, "\" is not a key of DeepSpeed")
                                : concat(section, " has no key \"", name, "\"");
  // Beyond this number of findings no suggestion is searched, which takes time.
  if (findings_.size() >= kMostHints || name.size() > kLongestKey) return add_finding(remark);
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    const std::string path = key.path;
    const size_t dot = path.rfind('.');
    if (dot != path.npos && path.substr(dot + 1) == name) {
      remark.text += concat("; it belongs into ", path.substr(0, dot));
      remark.nearest = path;
      return add_finding(remark);
    }
  }
  if (is_flag_(name)) {
    remark.text += concat("; it is a flag of the programs, --", name);
  } else if (!section.empty() && find_deepspeed_key(name) != nullptr) {
    remark.text += "; it belongs to the top";
    remark.nearest = name;
  } else if (const std::string nearest = nearest_name(name, deepspeed_names(section));
             !nearest.empty()) {
    remark.text += "; the nearest is " + nearest;
    remark.nearest = section.empty() ? nearest : concat(section, ".", nearest);
  }
  add_finding(remark);
}

void DeepSpeedFile::take(const Json& value, const std::string& key, const std::string& written) {
  const DeepSpeedKey& row = *find_deepspeed_key(key);
  const int64_t line = line_of(value);
  const auto find_fault = [&](const std::string& text) { add_finding({line, text, written, ""}); };
  const bool is_auto = value.is_string() && value.as_string() == "auto";
  const bool has_default =  // DeepSpeed drops such a value
      key.starts_with("zero_optimization.") && key != "zero_optimization.stage";
  if (is_auto && has_default && !row.may_be_auto && row.use != DeepSpeedKey::kRenamed) {
    const std::string text = concat(written, " is \"auto\": DeepSpeed's default");
    notes_.push_back({line, text, written, ""});
    return;
  }
  if (is_auto && !row.may_be_auto && row.use != DeepSpeedKey::kRenamed) {
    return find_fault(concat(written,
                             " is \"auto\", which nothing resolves; write a value or leave it out "
                             "(tessera-lint-ds --auto lists what may be)"));
  }
  // Oldest form: true means stage 1.
  const bool whole = key == "zero_optimization" && value.is_bool();
  if (whole)
    values_.insert_or_assign("zero_optimization.stage",
                             Value{value, line, "zero_optimization.stage"});
  const std::string wrong = is_auto || whole ? "" : complaint(value, row.kind);
  if (!wrong.empty()) return find_fault(concat(written, ": ", wrong));
  if (whole) return;
  if (row.use == DeepSpeedKey::kRefused) {
    if (!is_auto && !is_off(value, key)) {
      find_fault(concat(written, " is not available here: ", row.text));
    }
  } else if (row.use == DeepSpeedKey::kNoEffect) {
    idle_.push_back({line, concat(written, ": ", row.text), written, ""});
  } else if (row.use == DeepSpeedKey::kRenamed) {
    const std::string now = row.text;
    notes_.push_back({line, concat(written, " is called ", now, " today"), written, now});
    if (find_deepspeed_key(now)->use == DeepSpeedKey::kNoEffect) return;
    if (const Value* other = find(now)) {
      return find_fault(concat(written, " and ", now, " (line ", other->line,
                               ") say the same; leave out ", written));
    }
    if (row.kind == DeepSpeedKey::kSection) {
      walk(value, now, written);
    } else {
      values_.insert_or_assign(now, Value{value, line, now});
    }
  } else if (row.kind == DeepSpeedKey::kSection) {
    values_.insert_or_assign(key, Value{value, line, key});
    walk(value, key, written);
  } else {
    if (row.kind == DeepSpeedKey::kText && row.text[0] != '\0' && !is_auto &&
        !is_one_of(value.as_string(), row.text)) {
      return find_fault(
          concat(written, " is \"", value.as_string(), "\"; expected one of ", row.text));
    }
    if (values_.contains(key)) {  // set under an earlier name
      return find_fault(
          concat(written, " is said twice, the first time in line ", values_.at(key).line));
    }
    values_.insert_or_assign(key, Value{value, line, key});
  }
}

const DeepSpeedFile::Value* DeepSpeedFile::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::string DeepSpeedFile::where(const Value& value) const {
  return concat(path_, ":", value.line);
}

std::string DeepSpeedFile::quoted(const std::string& key) const {
  const Value* value = find(key);
  return value == nullptr ? key : concat(value->json.dump(), " (", key, ", ", where(*value), ")");
}

int64_t DeepSpeedFile::stage() const {
  const Value* stage = find("zero_optimization.stage");
  if (stage == nullptr) return 0;
  return stage->json.is_bool() ? int64_t{stage->json.as_bool()} : stage->count();
}

std::vector<DeepSpeedFile::Remark> DeepSpeedFile::findings() const {
  std::vector<Remark> sorted = findings_;
  std::ranges::stable_sort(sorted, {}, &Remark::line);
  return sorted;
}

std::vector<std::string> DeepSpeedFile::messages() const {
  std::vector<std::string> texts;
  for (const Remark& one : findings()) {
    texts.push_back(concat(path_, ":", one.line, ": ", one.text));
  }
  return texts;
}

}  // namespace tessera::programs
