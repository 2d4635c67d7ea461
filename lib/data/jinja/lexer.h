// SPDX-License-Identifier: MIT
#pragma once
// Cuts a template into text and the tokens of its tags, with the white space that tags take away.
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
  std::string text;  // of kData and kString: what it says
};

// "template:12: what": every error of a template is an Error(kInvalidArgument) like this.
template <typename... Parts>
[[noreturn]] void fail_at(const std::string& origin, int line, const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, origin, ":", line, ": ", parts...);
}

// What an error says was found.
std::string shown(const Token& token);

// As Jinja's lexer with trim_blocks and lstrip_blocks; the last token is kEnd.
std::vector<Token> tokens_of(std::string_view text, const std::string& origin);

}  // namespace tessera::jinja
