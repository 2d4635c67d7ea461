// SPDX-License-Identifier: MIT
#include "lib/data/jinja/date.h"

#include <locale.h>
#include <time.h>

#include <charconv>
#include <cstdio>

#include "tessera/core/error.h"

namespace tessera::jinja {

std::string date_text(std::chrono::sys_days day) {
  const std::chrono::year_month_day date(day);
  char text[32];
  std::snprintf(text, sizeof(text), "%04d-%02u-%02u", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
  return text;
}

std::chrono::sys_days parse_date(const std::string& text) {
  const auto number = [&](size_t begin, size_t size) {
    unsigned value = 0;
    const char* end = text.data() + begin + size;
    return std::from_chars(text.data() + begin, end, value).ptr == end ? value : 0;
  };
  if (text.size() == 10 && text[4] == '-' && text[7] == '-') {
    const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(number(0, 4))),
                                           std::chrono::month(number(5, 2)),
                                           std::chrono::day(number(8, 2))};
    if (date.ok() && date.year() > std::chrono::year(0)) return date;
  }
  fail(ErrorCode::kInvalidArgument, "the date \"", text,
       "\" of a chat template: expected YYYY-MM-DD, such as 2026-01-31");
}

std::optional<std::string> written_date(const std::string& form, std::chrono::sys_days day) {
  static const locale_t kEnglish = newlocale(LC_ALL_MASK, "C", nullptr);
  for (size_t at = form.find('%'); at != std::string::npos; at = form.find('%', at + 1)) {
    at = form.find_first_not_of("_-0^#+123456789EO", at + 1);
    if (at == std::string::npos) break;
    if (form[at] == 's') return std::nullopt;
  }
  const std::chrono::year_month_day date(day);
  const std::chrono::sys_days new_year = date.year() / 1 / 1;
  std::tm parts{};
  parts.tm_year = static_cast<int>(date.year()) - 1900;
  parts.tm_mon = static_cast<int>(static_cast<unsigned>(date.month())) - 1;
  parts.tm_mday = static_cast<int>(static_cast<unsigned>(date.day()));
  parts.tm_wday = static_cast<int>(std::chrono::weekday(day).c_encoding());
  parts.tm_yday = static_cast<int>((day - new_year).count());
  parts.tm_isdst = -1;  // no zone: %z and %Z are empty
  parts.tm_zone = "";
  std::string text(64 * 1024, '\0');
  text.resize(form.empty() ? 0
                           : strftime_l(text.data(), text.size(), form.c_str(), &parts, kEnglish));
  return text;
}

}  // namespace tessera::jinja
