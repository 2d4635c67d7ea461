// SPDX-License-Identifier: MIT
#pragma once
// The keys of DeepSpeed configuration files (versions 0.16 to 0.19) and what each means here.
#include <span>
#include <string>
#include <vector>

namespace tessera::programs {

struct DeepSpeedKey {
  enum Kind { kSwitch, kCount, kNumber, kText, kBetas, kSection, kAnything };
  enum Use {
    kUsed,      // sets flags
    kNoEffect,  // understood; nothing comes of it
    kRefused,   // cannot be served, unless its value switches it off
    kRenamed    // an earlier name of the key `text`
  };
  const char* path;  // with dots: fp16.enabled
  Kind kind;
  Use use;
  bool may_be_auto;
  const char* text;  // kNoEffect: why; kRefused: what to do; kText that is used: the values, "a|b"
};

// A section comes before the keys in it; what is in one that is kAnything is not looked at.
std::span<const DeepSpeedKey> deepspeed_keys();
const DeepSpeedKey* find_deepspeed_key(const std::string& path);  // null: unknown

// Names of the keys of a section ("" for the top), without its path.
std::vector<std::string> deepspeed_names(const std::string& section);

}  // namespace tessera::programs
