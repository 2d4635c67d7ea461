// SPDX-License-Identifier: MIT
#pragma once
// Dates in templates, independent of the process's time zone and locale.
#include <chrono>
#include <optional>
#include <string>

namespace tessera::jinja {

std::string date_text(std::chrono::sys_days day);  // YYYY-MM-DD
// Throws Error(kInvalidArgument) unless the text is a date of the years 1 to 9999.
std::chrono::sys_days parse_date(const std::string& text);
// Python's strftime for the day's midnight, without time zone and in English. Empty for a form that
// depends on a time zone (%s).
std::optional<std::string> written_date(const std::string& form, std::chrono::sys_days day);

}  // namespace tessera::jinja
