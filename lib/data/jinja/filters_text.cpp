// SPDX-License-Identifier: MIT
// Filters of single values.
#include <cmath>
#include <cstdio>
#include <limits>

#include "lib/core/number_text.h"
#include "lib/data/jinja/filters.h"
#include "lib/data/jinja/text.h"
#include "lib/data/unicode.h"

namespace tessera::jinja {
namespace {

// The value as text; keeps its markup flag.
Text soft(Evaluator& run, const Value& value) {
  if (const Text* text = value.as_text()) return *text;
  run.charge(value.extent().weight);
  return {std::make_shared<const std::string>(str(value))};
}

// A filter without arguments that changes a text and keeps its markup flag.
template <std::string (*kChange)(std::string_view)>
Value changed(Evaluator& run, const Value& input, const Arguments& given) {
  run.bind("this filter", given, {});
  const Text text = soft(run, input);
  run.charge(text.bytes->size() / 4);
  return run.text(kChange(*text.bytes), text.markup);
}

Value string(Evaluator& run, const Value& input, const Arguments& given) {
  run.bind("string", given, {});
  const Text text = soft(run, input);
  return run.text(*text.bytes, text.markup);
}

Value safe(Evaluator& run, const Value& input, const Arguments& given) {
  run.bind("safe", given, {});
  return run.text(*soft(run, input).bytes, true);
}

Value escape(Evaluator& run, const Value& input, const Arguments& given) {
  run.bind("escape", given, {});
  const Text text = soft(run, input);
  return run.text(text.markup ? *text.bytes : escaped(*text.bytes), true);
}

Value trim(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind("trim", given, {"chars"});
  const Text text = soft(run, input);
  std::optional<std::string> characters;
  if (bound[0] && !bound[0]->is_none()) {
    if (!bound[0]->as_string()) run.fail("the filter 'trim' needs a str of characters");
    characters = *bound[0]->as_string();
    run.charge(text.bytes->size() * characters->size() / 256);
  }
  return run.text(std::string(stripped(*text.bytes, true, true, characters)), text.markup);
}

Value replace(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind("replace", given, {"old", "new", "count"});
  if (!bound[0] || !bound[1]) run.fail("the filter 'replace' needs what to replace and by what");
  const bool limited = bound[2] && !bound[2]->is_none();
  const Text plain{soft(run, input).bytes};
  return run.replaced(plain, *soft(run, *bound[0]).bytes, *soft(run, *bound[1]).bytes,
                      limited ? run.whole("replace", bound[2], -1) : -1);
}

Value default_value(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind("default", given, {"default_value", "boolean"});
  const bool replaces = input.is_undefined() || (bound[1] && bound[1]->truth() && !input.truth());
  return replaces ? bound[0].value_or(Value("")) : input;
}

Value indent(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind("indent", given, {"width", "first", "blank"});
  if (input.is_undefined()) run.fail_undefined(input);
  if (!input.as_string()) run.fail("the filter 'indent' needs a str, found ", input.type_name());
  const std::string* shown = bound[0] ? bound[0]->as_string() : nullptr;
  const int64_t width = shown ? 0 : std::max<int64_t>(0, run.whole("indent", bound[0], 4));
  run.charge(static_cast<size_t>(width) / 16);
  const std::string space = shown ? *shown : std::string(static_cast<size_t>(width), ' ');
  const bool first = bound[1] && bound[1]->truth(), blank = bound[2] && bound[2]->truth();
  const std::vector<std::string> lines = split_lines(*input.as_string() + "\n");
  run.charge(lines.size() * (1 + space.size() / 16));
  std::string result = first ? space : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result += '\n';
    if (i > 0 && (blank || !lines[i].empty())) result += space;
    result += lines[i];
  }
  return run.text(std::move(result), input.as_text()->markup);
}

// Both kinds of errors for which Python's int() and float() give the default.
Value to_int(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind("int", given, {"default", "base"});
  const Value fallback = bound[0].value_or(Value(int64_t{0}));
  if (input.is_undefined()) run.fail_undefined(input);
  int64_t number = 0;
  double real = 0;
  if (input.is_whole(number)) return number;
  if (const std::string* text = input.as_string()) {
    if (const auto read = parse_int(*text, run.whole("int", bound[1], 10))) return *read;
    const auto read = parse_float(*text);
    if (!read) return fallback;
    real = *read;
  } else if (!input.is_number(real)) {
    return fallback;
  }
  if (!std::isfinite(real)) return fallback;
  real = std::trunc(real);
  if (std::abs(real) >= 9.2e18) run.fail(float_repr(real), " is beyond 64 bits");
  return static_cast<int64_t>(real);
}

Value to_float(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind("float", given, {"default"});
  if (input.is_undefined()) run.fail_undefined(input);
  double real = 0;
  if (input.is_number(real)) return real;
  const auto read = input.as_string() ? parse_float(*input.as_string()) : std::nullopt;
  return read ? Value(*read) : bound[0].value_or(Value(0.0));
}

Value absolute(Evaluator& run, const Value& input, const Arguments& given) {
  run.bind("abs", given, {});
  double real = 0;
  int64_t number = 0;
  if (input.is_undefined()) run.fail_undefined(input);
  if (input.is_whole(number)) {
    return number < 0 ? run.binary("-", int64_t{0}, number) : Value(number);
  }
  if (!input.is_number(real))
    run.fail("the filter 'abs' needs a number, found ", input.type_name());
  return std::abs(real);
}

Value rounded(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound = run.bind("round", given, {"precision", "method"});
  const int64_t places = run.whole("round", bound[0], 0);
  const std::string method = bound[1] ? str(*bound[1]) : "common";
  if (input.is_undefined()) run.fail_undefined(input);
  double real = 0;
  if (!input.is_number(real))
    run.fail("the filter 'round' needs a number, found ", input.type_name());
  if (places < 0 || places > 300) run.fail("the filter 'round' takes 0 to 300 places");
  if (method == "common") {
    int64_t number = 0;
    if (input.is_whole(number)) return number;
    return *parse_float(printed("%.*f", static_cast<int>(places), real));
  }
  if (method != "ceil" && method != "floor") {
    run.fail("the filter 'round' knows the methods common, ceil and floor, not '", method, "'");
  }
  const double scale = std::pow(10.0, static_cast<double>(places));
  return (method == "ceil" ? std::ceil(real * scale) : std::floor(real * scale)) / scale;
}

Value tojson(Evaluator& run, const Value& input, const Arguments& given) {
  const Bound bound =
      run.bind("tojson", given, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound[0] && bound[0]->truth();
  if (bound[1] && !bound[1]->is_none()) {
    style.lines = true;
    style.between.pop_back();  // no space before a line end
    const std::string* text = bound[1]->as_string();
    const int64_t width = text ? 0 : run.whole("tojson", bound[1], 0);
    if (width > 100 || (text && text->size() > 100)) run.fail("an indent of tojson is at most 100");
    style.indent =
        text ? *text : std::string(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
  }
  if (bound[2] && !bound[2]->is_none()) {
    const Values both = run.items_of(*bound[2]);
    if (both.size() != 2 || !both[0].as_string() || !both[1].as_string()) {
      run.fail("separators of tojson are two texts, like (\",\", \":\")");
    }
    style.between = *both[0].as_string();
    style.after_key = *both[1].as_string();
    run.charge(input.extent().weight * (style.between.size() + style.after_key.size()) / 16);
  }
  style.sort_keys = bound[3] && bound[3]->truth();
  run.charge(input.extent().weight * (style.lines ? 1 + style.indent.size() : 1));
  return run.text(to_json(input, style));
}

}  // namespace

const Filters& text_filters() {
  static const Filters kFilters = {
      {"abs", absolute},
      {"capitalize", changed<capitalized>},
      {"d", default_value},
      {"default", default_value},
      {"e", escape},
      {"escape", escape},
      {"float", to_float},
      {"format", [](Evaluator& run, const Value& input,
                    const Arguments& given) { return run.text(run.formatted(str(input), given)); }},
      {"indent", indent},
      {"int", to_int},
      {"lower", changed<python_lower>},
      {"replace", replace},
      {"round", rounded},
      {"safe", safe},
      {"string", string},
      {"title", changed<titled_by_jinja>},
      {"tojson", tojson},
      {"trim", trim},
      {"upper", changed<python_upper>},
  };
  return kFilters;
}

Value Evaluator::filter(const std::string& name, const Value& input, const Arguments& given) {
  for (const Filters* table : {&text_filters(), &sequence_filters()}) {
    const auto found = table->find(name);
    if (found != table->end()) return found->second(*this, input, given);
  }
  Filters all = text_filters();
  all.insert(sequence_filters().begin(), sequence_filters().end());
  std::string known;
  for (const auto& [word, filter] : all) known += (known.empty() ? "" : ", ") + word;
  fail("there is no filter '", name, "'; there are ", known);
}

}  // namespace tessera::jinja
