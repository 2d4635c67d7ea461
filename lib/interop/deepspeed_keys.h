// SPDX-License-Identifier: MIT
#pragma once
// Keys of DeepSpeed configuration files (versions 0.16 to 0.19) and their meaning here.
#include <span>
#include <string>
#include <vector>

namespace tessera::programs {

struct DeepSpeedKey {
  enum Kind { kSwitch, kCount, kNumber, kText, kBetas, kSection, kAnything };
  enum Use {
    kUsed,      // sets flags
    kNoEffect,  // understood, without effect
    kRefused,   // not supported, unless its value switches it off
    kRenamed    // an earlier name of the key `text`
  };
  const char* path;  // with dots: fp16.enabled
  Kind kind;
  Use use;
  bool may_be_auto;
  const char* text;  // kNoEffect: reason; kRefused: advice; used kText: valid values "a|b"
};

// Sections precede their keys; content of a kAnything section is ignored.
std::span<const DeepSpeedKey> deepspeed_keys();
const DeepSpeedKey* find_deepspeed_key(const std::string& path);  // null: unknown

// Names of a section's keys ("": top level), without its path.
std::vector<std::string> deepspeed_names(const std::string& section);

}  // namespace tessera::programs
