// SPDX-License-Identifier: MIT
#pragma once
// Splits a template into text and the tokens of its tags, with white space stripped as tags demand.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/error.h"

namespace tessera::jinja {

struct Token {
  enum class Kind {
    kData,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind;
  int line;
  std::string text;  // content of kData and kString
};

// Throws "template:12: message"; all errors of a template are such an Error(kInvalidArgument).
template <typename... Parts>
[[noreturn]] void fail_at(const std::string& origin, int line, const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, origin, ":", line, ": ", parts...);
}

// Name of a token in error messages.
std::string shown(const Token& token);

// Jinja's lexer with trim_blocks and lstrip_blocks; the last token is kEnd.
std::vector<Token> tokens_of(std::string_view text, const std::string& origin);

}  // namespace tessera::jinja
