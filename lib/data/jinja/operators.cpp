// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/data/jinja/evaluator.h"
#include "lib/data/jinja/text.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

// Concatenation; if one text is markup, the other is escaped.
Value joined(Evaluator& run, const Text& a, const Text& b) {
  const bool markup = a.markup || b.markup;
  const auto side = [&](const Text& text) {
    return markup && !text.markup ? escaped(*text.bytes) : *text.bytes;
  };
  return run.text(side(a) + side(b), markup);
}

Value repeated(Evaluator& run, const Value& value, int64_t times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  const Text* text = value.as_text();
  const size_t size = text ? text->bytes->size() : value.as_array()->items.size();
  run.charge(size == 0 ? 0
             : count > std::numeric_limits<size_t>::max() / size
                 ? std::numeric_limits<size_t>::max() / 2
                 : count * size / (text ? 16 : 1));
  if (text) {
    std::string result;
    for (size_t i = 0; i < count && size > 0; ++i) result += *text->bytes;
    return run.text(std::move(result), text->markup);
  }
  Values items;
  for (size_t i = 0; i < count && size > 0; ++i) {
    items.insert(items.end(), value.as_array()->items.begin(), value.as_array()->items.end());
  }
  return run.list(std::move(items), value.as_array()->kind);
}

double floor_mod(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

// Python's floor division: rounds down the exact quotient.
double floor_div(double a, double b) {
  const double rest = floor_mod(a, b);
  const double quotient = (a - rest) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double down = std::floor(quotient);
  return quotient - down > 0.5 ? down + 1 : down;
}

Value of_integers(Evaluator& run, const std::string& operation, int64_t a, int64_t b) {
  int64_t result = 0;
  bool beyond = false;
  if (operation == "+") {
    beyond = __builtin_add_overflow(a, b, &result);
  } else if (operation == "-") {
    beyond = __builtin_sub_overflow(a, b, &result);
  } else if (operation == "*") {
    beyond = __builtin_mul_overflow(a, b, &result);
  } else if (operation == "**") {
    if (b < 0) {
      if (a == 0) run.fail("0 has no negative power");
      return std::pow(static_cast<double>(a), static_cast<double>(b));
    }
    result = 1;
    if (a == 1 || a == -1) {
      result = b % 2 == 0 ? 1 : a;
    } else if (a == 0) {
      result = b == 0;
    } else {
      for (int64_t i = 0; i < b && !beyond; ++i)
        beyond = __builtin_mul_overflow(result, a, &result);
    }
  } else if (operation == "/") {
    return static_cast<double>(a) / static_cast<double>(b);
  } else if (a == kMin && b == -1) {
    beyond = operation == "//";
  } else {
    const int64_t rest = a % b;
    const bool down = rest != 0 && (rest < 0) != (b < 0);
    result = operation == "%" ? rest + (down ? b : 0) : a / b - (down ? 1 : 0);
  }
  if (beyond) run.fail(a, " ", operation, " ", b, " is beyond 64 bits");
  return result;
}

Value of_floats(Evaluator& run, const std::string& operation, double a, double b) {
  if (operation == "+") return a + b;
  if (operation == "-") return a - b;
  if (operation == "*") return a * b;
  if (operation == "/") return a / b;
  if (operation == "%") return floor_mod(a, b);
  if (operation == "//") return floor_div(a, b);
  if ((a == 0 && b < 0) || (a < 0 && b != std::floor(b))) {
    run.fail(float_repr(a), " ** ", float_repr(b), " is no real number");
  }
  const double power = std::pow(a, b);
  if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) {
    run.fail(float_repr(a), " ** ", float_repr(b), " is too large");
  }
  return power;
}

}  // namespace

Value Evaluator::binary(const std::string& operation, const Value& a, const Value& b) {
  for (const Value* side : {&a, &b}) {
    if (side->is_undefined()) fail_undefined(*side);
  }
  int64_t i = 0, j = 0;
  double x = 0, y = 0;
  if (a.is_number(x) && b.is_number(y)) {
    if (y == 0 && (operation == "/" || operation == "//" || operation == "%")) {
      fail("division by 0");
    }
    if (a.is_whole(i) && b.is_whole(j)) return of_integers(*this, operation, i, j);
    return of_floats(*this, operation, x, y);
  }
  if (operation == "+") {
    if (a.as_text() && b.as_text()) return joined(*this, *a.as_text(), *b.as_text());
    if (a.is_list() && b.is_list() && a.as_array()->kind == b.as_array()->kind) {
      Values items = items_of(a);
      for (Value& item : items_of(b)) items.push_back(std::move(item));
      return list(std::move(items), a.as_array()->kind);
    }
  }
  if (operation == "*") {
    if ((a.as_text() || a.is_list()) && b.is_whole(j)) return repeated(*this, a, j);
    if ((b.as_text() || b.is_list()) && a.is_whole(i)) return repeated(*this, b, i);
  }
  if (operation == "%" && a.as_text()) {
    Arguments given;
    const bool several = b.as_array() && b.as_array()->kind == Array::Kind::kTuple;
    given.positional = several ? b.as_array()->items : Values{b};
    return text(formatted(*a.as_string(), given));
  }
  fail("'", operation, "' does not join ", a.type_name(), " and ", b.type_name());
}

bool Evaluator::contains(const Value& container, const Value& value) {
  if (container.is_undefined()) return false;
  charge(value.extent().weight);
  if (const std::string* text = container.as_string()) {
    if (value.is_undefined()) fail_undefined(value);
    const std::string* part = value.as_string();
    if (part == nullptr) fail("'", value.type_name(), "' cannot stand in a str");
    charge_search(*text, *part);
    return text->find(*part) != std::string::npos;
  }
  if (const Dict* dict = container.as_dict()) {
    charge(dict->members.size() / 8);
    return dict->find(value) != nullptr;
  }
  if (container.as_array()) {
    charge(container.extent().weight);
    const Values items = items_of(container);
    return std::ranges::find(items, value) != items.end();
  }
  fail("nothing can stand in a ", container.type_name());
}

bool Evaluator::compare(const std::string& operation, const Value& a, const Value& b) {
  if (operation == "in") return contains(b, a);
  if (operation == "not in") return !contains(b, a);
  charge(std::min(a.extent().weight, b.extent().weight));
  if (operation == "==") return a == b;
  if (operation == "!=") return !(a == b);
  for (const Value* side : {&a, &b}) {
    double number = 0;
    if (side->is_number(number) && std::isnan(number)) return false;
  }
  const int ordered = order(a, b);
  if (operation == "<") return ordered < 0;
  if (operation == ">") return ordered > 0;
  return operation == "<=" ? ordered <= 0 : ordered >= 0;
}

}  // namespace tessera::jinja
