// SPDX-License-Identifier: MIT
#pragma once
// Built-in chat templates, written from public descriptions of these formats.
#include <span>

namespace tessera {

struct BuiltinChatTemplate {
  const char* name;  // in lower case
  const char* text;
};
std::span<const BuiltinChatTemplate> builtin_chat_templates();

}  // namespace tessera
