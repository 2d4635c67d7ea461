// SPDX-License-Identifier: MIT
#pragma once
// Constructors for rows of the table of foreign flags.
#include <span>

#include "lib/settings/flags.h"

namespace tessera::programs::foreign {

constexpr ForeignFlag same(const char* name, const char* flag) {
  return {name, "*", ForeignFlag::kSets, flag, "*", ""};
}
constexpr ForeignFlag sets(const char* name, const char* value, const char* flag, const char* to) {
  return {name, value, ForeignFlag::kSets, flag, to, ""};
}
constexpr ForeignFlag no_effect(const char* name, const char* value, const char* why) {
  return {name, value, ForeignFlag::kNoEffect, "", "", why};
}
constexpr ForeignFlag needs(const char* name, const char* value, const char* flag) {
  return {name, value, ForeignFlag::kNeeds, flag, "", ""};
}
constexpr ForeignFlag refused(const char* name, const char* value, const char* remedy) {
  return {name, value, ForeignFlag::kRefused, "", "", remedy};
}

inline constexpr const char* kOff = "it is off";
inline constexpr const char* kKernels =
    "the library has kernels of its own; nothing is compiled at run time";
inline constexpr const char* kQuantised =
    "weights are fp32, bf16 or fp16; --dtype bf16 with --lora_r keeps the frozen ones in 2 bytes";

// Flags of TRL, Megatron-LM, torchtitan, and common ones of many scripts.
std::span<const ForeignFlag> framework_flags();

}  // namespace tessera::programs::foreign
