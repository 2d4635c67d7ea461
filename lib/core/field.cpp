// SPDX-License-Identifier: MIT
#include "lib/core/field.h"

#include <charconv>
#include <cmath>
#include <sstream>

#include "tessera/core/json.h"

namespace tessera {
namespace {

std::string written(const std::string& value) { return value; }
template <typename T>
std::string written(const T& value) {
  return JsonWriter().value(value).text();
}
std::string written(const StepInterval& value) {
  return value.share > 0 ? written(value.share) : written(value.steps);
}
template <typename Number>
std::string written(const std::vector<Number>& values) {
  std::string text;
  for (const Number value : values) {
    if (!text.empty()) text += ',';
    text += written(value);
  }
  return text;
}

bool parse(const std::string& text, std::string& value) {
  value = text;
  return true;
}
bool parse(const std::string& text, bool& value) {
  const std::optional<bool> parsed = parse_bool(text);
  value = parsed.value_or(value);
  return parsed.has_value();
}
template <typename Number>
bool parse(const std::string& text, Number& value) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(number)) return false;
  }
  value = number;
  return true;
}
// "0.1" is a share; "20.0" and "2e1" are 20 steps, "1.0" is one; "2.5" is neither.
bool parse(const std::string& text, StepInterval& value) {
  constexpr double kMost = 9007199254740992;  // up to here every integer is a double
  StepInterval parsed;
  if (!parse(text, parsed.steps)) {
    double number = 0;
    if (!parse(text, number)) return false;
    if (number > 0 && number < 1) {
      parsed.share = number;
    } else if (std::abs(number) <= kMost && std::trunc(number) == number) {
      parsed.steps = static_cast<int64_t>(number);
    } else {
      return false;
    }
  }
  value = parsed;
  return true;
}
template <typename Number>
bool parse(const std::string& text, std::vector<Number>& values) {
  std::vector<Number> parsed;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    if (!parse(part, parsed.emplace_back())) return false;
  }
  values = std::move(parsed);
  return true;
}

}  // namespace

std::optional<bool> parse_bool(const std::string& text) {
  if (text == "true" || text == "True" || text == "TRUE" || text == "1") return true;
  if (text == "false" || text == "False" || text == "FALSE" || text == "0") return false;
  return std::nullopt;
}

std::string text_of(const FieldRef& field) {
  if (const auto* choice = std::get_if<Choice>(&field)) {
    const size_t at = choice->get(choice->variable);
    return at < choice->count ? choice->name(at) : "?";
  }
  return std::visit(
      [](const auto& value) -> std::string {
        if constexpr (std::is_pointer_v<std::decay_t<decltype(value)>>) return written(*value);
        return "";
      },
      field);
}

bool set_text(const FieldRef& field, const std::string& text) {
  if (const auto* choice = std::get_if<Choice>(&field)) {
    for (size_t i = 0; i < choice->count; ++i) {
      if (text != choice->name(i)) continue;
      choice->set(choice->variable, i);
      return true;
    }
    return false;
  }
  return std::visit(
      [&](const auto& value) {
        if constexpr (std::is_pointer_v<std::decay_t<decltype(value)>>) return parse(text, *value);
        return false;
      },
      field);
}

bool is_text(const FieldRef& field) {
  return std::holds_alternative<std::string*>(field) || std::holds_alternative<Choice>(field);
}

std::vector<std::string> Choice::names() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    if (*name(i) != '\0') names.emplace_back(name(i));
  }
  return names;
}

std::vector<std::string> names_of(const FieldRef& field) {
  const auto* choice = std::get_if<Choice>(&field);
  if (choice == nullptr) return {};
  std::vector<std::string> names = choice->names();
  return names.size() == choice->count ? names : std::vector<std::string>{};
}

}  // namespace tessera
