// SPDX-License-Identifier: MIT
#include "lib/core/number_text.h"

#include <locale.h>

#include <charconv>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <locale>

namespace tessera {
namespace {

// Sets the C locale for this thread's printf.
class PlainNumbers {
 public:
  PlainNumbers() : before_(uselocale(plain())) {}
  ~PlainNumbers() { uselocale(before_); }
  PlainNumbers(const PlainNumbers&) = delete;
  PlainNumbers& operator=(const PlainNumbers&) = delete;

 private:
  static locale_t plain() {
    static const locale_t kPlain = newlocale(LC_ALL_MASK, "C", nullptr);
    return kPlain;
  }
  const locale_t before_;
};

// Length of the number at the start of the text; 0: none.
size_t read_number(std::string_view text, double& number) {
  const size_t sign = text.starts_with('+') && !text.starts_with("+-") ? 1 : 0;
  const char* begin = text.data() + sign;
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
  if (error == std::errc::invalid_argument) return 0;
  if (error == std::errc::result_out_of_range) {
    const std::string_view digits(begin, static_cast<size_t>(end - begin));
    const size_t mark = digits.find_first_of("eE");
    const bool small = mark != digits.npos && digits.substr(mark + 1).starts_with('-');
    number = std::copysign(small ? 0.0 : HUGE_VAL, digits.starts_with('-') ? -1.0 : 1.0);
  }
  return static_cast<size_t>(end - text.data());
}

}  // namespace

std::string printed(const char* form, ...) {
  const PlainNumbers plain;
  va_list values, again;
  va_start(values, form);
  va_copy(again, values);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, form, values)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, form, again);
  va_end(again);
  va_end(values);
  return text;
}

std::optional<double> parse_number(std::string_view text) {
  double number = 0;
  const size_t size = read_number(text, number);
  return size > 0 && size == text.size() ? std::optional(number) : std::nullopt;
}

double leading_number(std::string_view text) {
  double number = 0;
  read_number(text, number);
  return number;
}

std::string exact_text(double number) {
  char text[40];
  return {text, std::to_chars(text, text + sizeof(text), number).ptr};
}

std::istringstream reader_of(const std::string& text) {
  std::istringstream reader(text);
  reader.imbue(std::locale::classic());
  return reader;
}

}  // namespace tessera
