// SPDX-License-Identifier: MIT
#pragma once
// A reference to a variable of any type with text conversion, for flags, records and the layout
// fuzzer's lines.
#include <c10/core/ScalarType.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tessera {

// Interval between repeated actions in steps, as transformers parses it.
struct StepInterval {
  int64_t steps = 0;
  double share = 0;  // share of all steps, below 1; 0: use `steps`

  // The interval in steps; a share is rounded up, so it is never 0.
  int64_t of(int64_t all_steps) const {
    return share > 0 ? static_cast<int64_t>(std::ceil(static_cast<double>(all_steps) * share))
                     : steps;
  }
  bool is_never() const { return share == 0 && steps < 0; }
};

// Names of an enum's values, in the order of help texts. Declared once, in a header of the enum's
// module.
template <typename T>
using Named = std::pair<const char*, T>;
template <typename T>
constexpr std::nullptr_t kNames = nullptr;
template <>
inline constexpr auto kNames<at::ScalarType> = std::to_array<Named<at::ScalarType>>(
    {{"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}});
template <>
inline constexpr auto kNames<std::optional<at::ScalarType>> =
    std::to_array<Named<std::optional<at::ScalarType>>>(
        {{"", std::nullopt}, {"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}});

// A variable with few possible values. Name "": not given.
struct Choice {
  void* variable;
  size_t count;
  const char* (*name)(size_t);
  size_t (*get)(const void*);  // index; count: none of them
  void (*set)(void*, size_t);

  std::vector<std::string> names() const;  // except ""
};

template <const auto& kTable, typename T>
Choice choice_of(T& variable) {
  return {&variable, kTable.size(), [](size_t i) { return kTable[i].first; },
          [](const void* at) {
            size_t i = 0;
            while (i < kTable.size() && kTable[i].second != *static_cast<const T*>(at)) ++i;
            return i;
          },
          [](void* at, size_t i) { *static_cast<T*>(at) = kTable[i].second; }};
}

using FieldRef = std::variant<bool*, int*, int64_t*, uint64_t*, double*, StepInterval*,
                              std::string*, std::vector<int64_t>*, std::vector<double>*, Choice>;

template <typename T>
FieldRef field_of(T& variable) {
  if constexpr (std::is_constructible_v<FieldRef, T*>) {
    return &variable;
  } else {
    return choice_of<kNames<T>>(variable);
  }
}
// The member behind a path of members: field_at<Options, &Options::data, &Data::packing>(options).
template <typename Root, auto... kPath>
FieldRef field_at(Root& root) {
  return field_of((root.*....*kPath));
}

// The value as text: "true", "3", "0.1"; several numbers: "1,2".
std::string text_of(const FieldRef& field);
// Sets the variable from text_of()'s form or another spelling. False for an invalid text, which
// sets nothing.
bool set_text(const FieldRef& field, const std::string& text);
bool is_text(const FieldRef& field);  // true for strings and names, which JSON quotes
// Names of a Choice without the empty one; empty for other types.
std::vector<std::string> names_of(const FieldRef& field);

template <typename T>
std::string name_of(T value) {
  return text_of(field_of(value));
}
// All names of an enum, as help and the layout fuzzer list them.
template <typename T>
std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const auto& [name, value] : kNames<T>) names.emplace_back(name);
  return names;
}

// Parses true, True, TRUE, 1 and their opposites.
std::optional<bool> parse_bool(const std::string& text);

}  // namespace tessera
