// SPDX-License-Identifier: MIT
#pragma once
// Chat templates that come with the library, written from the public descriptions of these formats.
#include <span>

namespace tessera {

struct BuiltinChatTemplate {
  const char* name;  // in small letters
  const char* text;
};
std::span<const BuiltinChatTemplate> builtin_chat_templates();

}  // namespace tessera
