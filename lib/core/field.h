// SPDX-License-Identifier: MIT
#pragma once
// A variable behind a name, whatever its type: what flags set, what records say, what the lines of
// the layout fuzzer hold.
#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lib/core/step_interval.h"

namespace tessera {

// The values of a type that has few, with their names, in the order of help texts. Stands once, in
// a header of the module that the type is of.
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

// A variable that has one of a few values. The name "": it is not given.
struct Choice {
  void* variable;
  size_t count;
  const char* (*name)(size_t);
  size_t (*get)(const void*);  // count: none of them
  void (*set)(void*, size_t);

  std::vector<std::string> names() const;  // but for ""
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
// By the way to it from a struct: field_at<Options, &Options::data, &Data::packing>(options).
template <typename Root, auto... kPath>
FieldRef field_at(Root& root) {
  return field_of((root.*....*kPath));
}

// As it may be written: "true", "3", "0.1"; of several numbers "1,2".
std::string text_of(const FieldRef& field);
// Sets what text_of() gives, and other spellings of it. False, and nothing is set: the text is no
// value of this kind.
bool set_text(const FieldRef& field, const std::string& text);
bool is_text(const FieldRef& field);  // a text or a name, which JSON puts in quotes
// The names of a Choice that must be given; nothing for others.
std::vector<std::string> names_of(const FieldRef& field);

template <typename T>
std::string name_of(T value) {
  return text_of(field_of(value));
}

// true, True, TRUE and 1, and their opposites.
std::optional<bool> parse_bool(const std::string& text);

}  // namespace tessera
