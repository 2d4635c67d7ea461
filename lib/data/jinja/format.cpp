// SPDX-License-Identifier: MIT
// Format strings: the operator %, the filter format and str.format.
#include <cstdio>

#include "lib/core/number_text.h"
#include "lib/data/jinja/evaluator.h"
#include "lib/data/jinja/text.h"

namespace tessera::jinja {
namespace {

constexpr int kMaxWidth = 1000;

// A number as printf formats it, with `flags` such as "-08.3".
std::string number_as(Evaluator& run, std::string flags, char kind, const Value& value) {
  double real = 0;
  int64_t whole = 0;
  if (kind == 'd' || kind == 'i' || kind == 'u' || kind == 'x' || kind == 'X') {
    if (!value.is_whole(whole)) {
      if (!value.is_number(real) || kind == 'x' || kind == 'X' || !(real > -9e18 && real < 9e18)) {
        run.fail("%", std::string(1, kind), " needs an integer, found ", value.type_name());
      }
      whole = static_cast<int64_t>(real);
    }
    const bool hexadecimal = kind == 'x' || kind == 'X';
    if (hexadecimal && whole < 0) run.fail("%x needs a number that is not negative");
    const std::string form = "%" + flags + "l" + (hexadecimal ? kind : 'd');
    return printed(form.c_str(), static_cast<long>(whole));
  }
  if (!value.is_number(real)) {
    run.fail("%", std::string(1, kind), " needs a number, found ", value.type_name());
  }
  const std::string form = "%" + flags + kind;
  return printed(form.c_str(), real);
}

// The digits at `at` as a number up to kMaxWidth.
int width_at(Evaluator& run, const std::string& form, size_t& at) {
  int width = 0;
  while (at < form.size() && form[at] >= '0' && form[at] <= '9') {
    width = width * 10 + (form[at++] - '0');
    if (width > kMaxWidth) run.fail("a format asks for more than ", kMaxWidth, " characters");
  }
  return width;
}

}  // namespace

std::string Evaluator::formatted(const std::string& form, const Arguments& given) {
  if (!given.named.empty()) fail("named values in a format are not supported");
  std::string result;
  size_t next = 0;
  for (size_t at = 0; at < form.size(); ++at) {
    if (form[at] != '%') {
      result += form[at];
      continue;
    }
    const size_t begin = ++at;
    while (at < form.size() && std::string_view("-+ 0").find(form[at]) != std::string_view::npos) {
      ++at;
    }
    const bool left = form.substr(begin, at - begin).find('-') != std::string::npos;
    if (at - begin > 4) fail("a format repeats its flags");
    const int width = width_at(*this, form, at);
    int precision = -1;
    if (at < form.size() && form[at] == '.') precision = width_at(*this, form, ++at);
    const std::string flags = form.substr(begin, at - begin);
    const char kind = at < form.size() ? form[at] : '\0';
    if (kind == '%') {
      result += '%';
      continue;
    }
    if (kind == '\0' || std::string_view("srdiuxXfFeEgG").find(kind) == std::string_view::npos) {
      fail("'", form, "': expected s, r, d, i, x, f, e or g behind %");
    }
    if (next >= given.positional.size()) fail("'", form, "' needs more values");
    const Value& value = given.positional[next++];
    if (value.is_undefined() && kind != 's' && kind != 'r') fail_undefined(value);
    charge(value.extent().weight + static_cast<size_t>(width));
    if (kind != 's' && kind != 'r') {
      result += number_as(*this, flags, kind, value);
      continue;
    }
    std::string text = kind == 's' ? str(value) : repr(value);
    if (precision >= 0) text = text.substr(0, byte_of(text, static_cast<size_t>(precision)));
    const auto size = static_cast<int>(std::min<size_t>(length_of(text), kMaxWidth));
    const std::string space(static_cast<size_t>(std::max(0, width - size)), ' ');
    result += left ? text + space : space + text;
  }
  // Python takes a value with items as a mapping of named values.
  const bool source = given.positional.size() == 1 && next == 0 &&
                      (given.positional[0].as_dict() || given.positional[0].is_list());
  if (next < given.positional.size() && !source) {
    fail("'", form, "' has no place for all values");
  }
  return result;
}

std::string braced(Evaluator& run, const std::string& form, const Arguments& given) {
  std::string result;
  size_t next = 0;
  bool numbered = false;
  for (size_t at = 0; at < form.size(); ++at) {
    const char c = form[at];
    if (c != '{' && c != '}') {
      result += c;
      continue;
    }
    if (at + 1 < form.size() && form[at + 1] == c) {
      result += c;
      ++at;
      continue;
    }
    const size_t end = form.find('}', at);
    if (c == '}' || end == std::string::npos) run.fail("'", form, "': a brace has no partner");
    std::string name = form.substr(at + 1, end - at - 1);
    at = end;
    std::string flags;
    if (const size_t colon = name.find(':'); colon != std::string::npos) {
      flags = name.substr(colon + 1);
      name.resize(colon);
    }
    const Value* value = nullptr;
    const auto index =
        name.empty() ? std::optional(static_cast<int64_t>(next++)) : parse_int(name, 10);
    numbered = numbered || (index && !name.empty());
    if (numbered && next > 0) run.fail("'", form, "' has places with a number and without one");
    if (index && *index >= 0 && static_cast<size_t>(*index) < given.positional.size()) {
      value = &given.positional[static_cast<size_t>(*index)];
    }
    for (const auto& [known, held] : given.named) {
      if (!index && known == name) value = &held;
    }
    if (value == nullptr) run.fail("'", form, "' has no value for {", name, "}");
    run.charge(value->extent().weight);
    if (flags.empty()) {
      result += str(*value);
      continue;
    }
    size_t digits = flags.find_first_not_of('0');
    digits = digits == std::string::npos ? flags.size() : digits;
    width_at(run, flags, digits);
    if (digits < flags.size() && flags[digits] == '.') width_at(run, flags, ++digits);
    const std::string_view kind = std::string_view(flags).substr(digits);
    if (kind != "d" && kind != "f" && kind != "x") {
      run.fail("'{", name, ":", flags, "}': only forms like {:03d}, {:.2f} and {:x} are supported");
    }
    if (value->is_undefined()) run.fail_undefined(*value);
    result += number_as(run, flags.substr(0, digits), kind[0], *value);
  }
  return result;
}

}  // namespace tessera::jinja
