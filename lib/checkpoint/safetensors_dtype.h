// SPDX-License-Identifier: MIT
#pragma once
// Mapping of safetensors' dtype names to ATen.
#include <c10/core/ScalarType.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

struct SafetensorsDtype {
  std::string_view name;
  at::ScalarType type;
};
inline constexpr std::array kSafetensorsDtypes = {
    SafetensorsDtype{"F32", at::kFloat},
    SafetensorsDtype{"BF16", at::kBFloat16},
    SafetensorsDtype{"F16", at::kHalf},
    SafetensorsDtype{"F64", at::kDouble},
    SafetensorsDtype{"I64", at::kLong},
    SafetensorsDtype{"I32", at::kInt},
    SafetensorsDtype{"I16", at::kShort},
    SafetensorsDtype{"I8", at::kChar},
    SafetensorsDtype{"U8", at::kByte},
    SafetensorsDtype{"BOOL", at::kBool},
    SafetensorsDtype{"U16", at::kUInt16},
    SafetensorsDtype{"U32", at::kUInt32},
    SafetensorsDtype{"U64", at::kUInt64},
    SafetensorsDtype{"F8_E4M3", at::kFloat8_e4m3fn},
    SafetensorsDtype{"F8_E5M2", at::kFloat8_e5m2},
    SafetensorsDtype{"C64", at::kComplexFloat},
};

inline std::optional<at::ScalarType> safetensors_dtype(std::string_view name) {
  for (const auto& dtype : kSafetensorsDtypes) {
    if (dtype.name == name) return dtype.type;
  }
  return std::nullopt;
}

inline std::optional<std::string> safetensors_dtype_name(at::ScalarType type) {
  for (const auto& dtype : kSafetensorsDtypes) {
    if (dtype.type == type) return std::string(dtype.name);
  }
  return std::nullopt;
}

}  // namespace tessera
