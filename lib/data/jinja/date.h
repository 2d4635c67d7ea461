// SPDX-License-Identifier: MIT
#pragma once
// Days as templates write them, whatever time zone and locale the process has.
#include <chrono>
#include <optional>
#include <string>

namespace tessera::jinja {

std::string date_text(std::chrono::sys_days day);  // YYYY-MM-DD
// Throws Error(kInvalidArgument) for what is no date of the years 1 to 9999.
std::chrono::sys_days parse_date(const std::string& text);
// Python's strftime of the day's midnight, without a time zone and in English. Nothing where the
// form asks for what depends on a time zone (%s).
std::optional<std::string> written_date(const std::string& form, std::chrono::sys_days day);

}  // namespace tessera::jinja
