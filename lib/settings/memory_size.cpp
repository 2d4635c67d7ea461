// SPDX-License-Identifier: MIT
#include "lib/settings/memory_size.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::programs {

std::optional<double> parse_memory_size(const std::string& text, double plain) {
  constexpr std::pair<const char*, double> kUnits[] = {
      {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12}};
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc() || number <= 0 || !std::isfinite(number)) return std::nullopt;
  std::string unit(end, last);
  std::erase(unit, ' ');
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto known = std::ranges::find(kUnits, unit, [](const auto& one) { return one.first; });
  double bytes = 0;
  if (known != std::end(kUnits)) bytes = number * known->second;
  if (unit.empty()) bytes = number * plain;
  return bytes > 0 && bytes <= kMostMemory ? std::optional(bytes) : std::nullopt;
}

namespace {

std::optional<MemoryShare> parse_share(const std::string& text, const char* expected) {
  if (text.empty()) return std::nullopt;
  if (text == "auto") return MemoryShare{.automatic = true};
  const std::optional<double> bytes = parse_memory_size(text, /*plain=*/0x1p30);
  check(bytes.has_value(), ErrorCode::kInvalidArgument, expected,
        ", as 2.5 or 900MiB, at most 2^60 bytes, found '", text, "'");
  return MemoryShare{.bytes = *bytes};
}

}  // namespace

std::optional<MemoryShare> parse_activation_memory(const std::string& text) {
  return parse_share(text, "--activation_memory: expected auto, or the GiB of one rank above 0");
}

std::optional<MemoryShare> parse_offload_gpu_memory(const std::string& text) {
  if (text == "0") return std::nullopt;
  if (text.empty()) return MemoryShare{.automatic = true};
  return parse_share(text, "--offload_keep_on_gpu: expected auto, 0, or the GiB of one rank");
}

}  // namespace tessera::programs
