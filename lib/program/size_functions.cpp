// SPDX-License-Identifier: MIT
#include "lib/program/size_functions.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "tessera/core/error.h"

namespace tessera::program {
namespace {

using c10::IValue;
using Operands = std::vector<IValue>;

bool is_whole(const IValue& value) { return value.isInt() || value.isBool(); }

int64_t whole(const IValue& value) {
  if (value.isBool()) return value.toBool() ? 1 : 0;
  check(value.isInt(), ErrorCode::kDataLoss, "expected an integer");
  return value.toInt();
}

double number(const IValue& value) {
  if (value.isDouble()) return value.toDouble();
  return static_cast<double>(whole(value));
}

bool truth(const IValue& value) {
  return value.isDouble() ? value.toDouble() != 0 : whole(value) != 0;
}

bool both_whole(const Operands& x) { return is_whole(x[0]) && is_whole(x[1]); }

[[noreturn]] void overflow() { fail(ErrorCode::kDataLoss, "the integer does not fit 64 bits"); }

int64_t to_whole(double value) {
  // The bound is exact as a double, the largest integer is not.
  constexpr double kBound = 9223372036854775808.0;
  if (!(value >= -kBound && value < kBound)) overflow();
  return static_cast<int64_t>(value);
}

template <typename Whole, typename Number>
IValue arithmetic(const Operands& x, const Whole& whole_of, const Number& number_of) {
  if (!both_whole(x)) return number_of(number(x[0]), number(x[1]));
  int64_t result = 0;
  if (whole_of(whole(x[0]), whole(x[1]), &result)) overflow();
  return result;
}

IValue add(const Operands& x) {
  return arithmetic(
      x, [](int64_t a, int64_t b, int64_t* r) { return __builtin_add_overflow(a, b, r); },
      std::plus<double>());
}
IValue subtract(const Operands& x) {
  return arithmetic(
      x, [](int64_t a, int64_t b, int64_t* r) { return __builtin_sub_overflow(a, b, r); },
      std::minus<double>());
}
IValue multiply(const Operands& x) {
  return arithmetic(
      x, [](int64_t a, int64_t b, int64_t* r) { return __builtin_mul_overflow(a, b, r); },
      std::multiplies<double>());
}

void check_divisor(const IValue& divisor) {
  check(number(divisor) != 0, ErrorCode::kDataLoss, "a division by zero");
}

IValue floor_divide(const Operands& x) {
  check_divisor(x[1]);
  if (!both_whole(x)) return std::floor(number(x[0]) / number(x[1]));
  const int64_t a = whole(x[0]), b = whole(x[1]);
  if (a == std::numeric_limits<int64_t>::min() && b == -1) overflow();
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

IValue modulo(const Operands& x) {
  check_divisor(x[1]);
  if (!both_whole(x)) {
    const double a = number(x[0]), b = number(x[1]);
    return a - b * std::floor(a / b);
  }
  const int64_t a = whole(x[0]), b = whole(x[1]);
  if (b == -1) return int64_t{0};
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

IValue true_divide(const Operands& x) {
  check_divisor(x[1]);
  return number(x[0]) / number(x[1]);
}

IValue power(const Operands& x) {
  if (!both_whole(x) || whole(x[1]) < 0) return std::pow(number(x[0]), number(x[1]));
  Operands product{int64_t{1}, x[0]};
  const int64_t exponent = whole(x[1]);
  check(exponent <= 64 || number(x[0]) == 0 || std::abs(number(x[0])) == 1, ErrorCode::kDataLoss,
        "the integer does not fit 64 bits");
  for (int64_t i = 0; i < std::min<int64_t>(exponent, 64 + exponent % 2); ++i) {
    product[0] = multiply(product);
  }
  return product[0];
}

template <typename Holds>
IValue compare(const Operands& x, const Holds& holds) {
  if (both_whole(x)) return bool(holds(whole(x[0]), whole(x[1])));
  return bool(holds(number(x[0]), number(x[1])));
}

IValue smaller(const Operands& x) { return number(x[1]) < number(x[0]) ? x[1] : x[0]; }
IValue larger(const Operands& x) { return number(x[1]) > number(x[0]) ? x[1] : x[0]; }

IValue logic(const Operands& x, bool conjunction) {
  check(both_whole(x), ErrorCode::kDataLoss, "expected integers or booleans");
  if (x[0].isBool() && x[1].isBool()) {
    return conjunction ? truth(x[0]) && truth(x[1]) : truth(x[0]) || truth(x[1]);
  }
  return conjunction ? whole(x[0]) & whole(x[1]) : whole(x[0]) | whole(x[1]);
}

IValue sum(const Operands& x) {
  IValue total = int64_t{0};
  for (const IValue& term : x) total = add({total, term});
  return total;
}

struct Function {
  std::optional<size_t> operands;  // any number
  std::function<IValue(const Operands&)> evaluate;
};

const std::map<std::string, Function>& functions() {
  static const std::map<std::string, Function> all = {
      {"_operator.add", {2, add}},
      {"_operator.sub", {2, subtract}},
      {"_operator.mul", {2, multiply}},
      {"_operator.floordiv", {2, floor_divide}},
      {"_operator.mod", {2, modulo}},
      {"_operator.truediv", {2, true_divide}},
      {"_operator.pow", {2, power}},
      {"_operator.neg",
       {1,
        [](const Operands& x) {
          return subtract({int64_t{0}, x[0]});
        }}},
      {"_operator.pos", {1, [](const Operands& x) { return x[0]; }}},
      {"_operator.eq", {2, [](const Operands& x) { return compare(x, std::equal_to<>()); }}},
      {"_operator.ne", {2, [](const Operands& x) { return compare(x, std::not_equal_to<>()); }}},
      {"_operator.lt", {2, [](const Operands& x) { return compare(x, std::less<>()); }}},
      {"_operator.le", {2, [](const Operands& x) { return compare(x, std::less_equal<>()); }}},
      {"_operator.gt", {2, [](const Operands& x) { return compare(x, std::greater<>()); }}},
      {"_operator.ge", {2, [](const Operands& x) { return compare(x, std::greater_equal<>()); }}},
      {"_operator.and_", {2, [](const Operands& x) { return logic(x, true); }}},
      {"_operator.or_", {2, [](const Operands& x) { return logic(x, false); }}},
      {"_operator.not_", {1, [](const Operands& x) { return IValue(!truth(x[0])); }}},
      {"math.ceil", {1, [](const Operands& x) { return to_whole(std::ceil(number(x[0]))); }}},
      {"math.floor", {1, [](const Operands& x) { return to_whole(std::floor(number(x[0]))); }}},
      {"math.trunc", {1, [](const Operands& x) { return to_whole(std::trunc(number(x[0]))); }}},
      {"math.sqrt", {1, [](const Operands& x) { return std::sqrt(number(x[0])); }}},
      {"sym_sqrt", {1, [](const Operands& x) { return std::sqrt(number(x[0])); }}},
      {"sym_float", {1, [](const Operands& x) { return number(x[0]); }}},
      {"sym_int", {1, [](const Operands& x) { return to_whole(std::trunc(number(x[0]))); }}},
      {"sym_not", {1, [](const Operands& x) { return IValue(!truth(x[0])); }}},
      {"sym_max", {2, larger}},
      {"sym_min", {2, smaller}},
      {"sym_ite", {3, [](const Operands& x) { return truth(x[0]) ? x[1] : x[2]; }}},
      {"sym_sum", {std::nullopt, sum}},
  };
  return all;
}

}  // namespace

IValue evaluate(const std::string& target, const std::vector<IValue>& operands) {
  const Function& function = functions().at(target);
  check(!function.operands || *function.operands == operands.size(), ErrorCode::kDataLoss,
        "expected ", function.operands.value_or(0), " operands, found ", operands.size());
  return function.evaluate(operands);
}

}  // namespace tessera::program
