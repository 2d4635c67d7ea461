// SPDX-License-Identifier: MIT
#include "lib/data/jinja/lexer.h"

#include <algorithm>

#include "lib/data/jinja/text.h"
#include "lib/data/unicode.h"

namespace tessera::jinja {
namespace {

using Kind = Token::Kind;

// Line feeds for all line ends; the last one is removed.
std::string normalised(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      result += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      result += text[i];
    }
  }
  if (result.ends_with('\n')) result.pop_back();
  return result;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& origin)
      : text_(normalised(text)), origin_(origin) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const size_t tag = next_tag(at_);
      if (tag == text_.size()) {
        add(Kind::kData, text_.substr(at_));
        at_ = tag;
        break;
      }
      char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      if (sign != '-' && sign != '+') sign = '\0';
      add_data(std::string_view(text_).substr(at_, tag - at_), sign, text_[tag + 1] != '{');
      advance(tag);
      const int opened = line_;
      if (text_[tag + 1] == '#') {
        comment(tag + 2 + (sign ? 1 : 0), opened);
      } else if (text_[tag + 1] == '%' && raw(tag + 2 + (sign ? 1 : 0), opened)) {
        continue;
      } else {
        const bool block = text_[tag + 1] == '%';
        add(block ? Kind::kBlockBegin : Kind::kVariableBegin, "");
        advance(tag + 2 + (sign ? 1 : 0));
        inside(block, opened);
      }
    }
    tokens_.push_back({Kind::kEnd, line_, ""});
    return std::move(tokens_);
  }

 private:
  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    fail_at(origin_, line_, parts...);
  }

  size_t next_tag(size_t from) const {
    for (size_t at = text_.find('{', from); at != std::string::npos; at = text_.find('{', at + 1)) {
      if (at + 1 < text_.size() &&
          std::string_view("{%#").find(text_[at + 1]) != std::string::npos) {
        return at;
      }
    }
    return text_.size();
  }

  void advance(size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(at_),
                                         text_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  void add(Kind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  // Adds text before a tag. `-` strips the white space at its end; a block tag alone on its line
  // strips the line's indent.
  void add_data(std::string_view data, char sign, bool own_line) {
    if (sign == '-') {
      data = stripped(data, false, true);
    } else if (sign != '+' && own_line) {
      const size_t begin = data.rfind('\n') == data.npos ? 0 : data.rfind('\n') + 1;
      if ((begin > 0 || line_starting_) && stripped(data.substr(begin), true, false).empty()) {
        data = data.substr(0, begin);
      }
    }
    if (!data.empty()) add(Kind::kData, std::string(data));
  }

  size_t skip_space(size_t at) const {
    const std::string_view rest = std::string_view(text_).substr(at);
    return text_.size() - stripped(rest, true, false).size();
  }

  // Skips the white space that a tag ending at `at` strips; `sign` precedes its end.
  void close(size_t at, char sign, bool trims) {
    const size_t from = at;
    if (sign == '-') {
      at = skip_space(at);
    } else if (trims && sign != '+' && at < text_.size() && text_[at] == '\n') {
      ++at;
    }
    advance(from);
    advance(at);
    line_starting_ = text_[at - 1] == '\n';
  }

  void comment(size_t begin, int opened) {
    const size_t end = text_.find("#}", begin);
    if (end == std::string::npos) {
      if (begin < text_.size()) fail_at(origin_, opened, "a comment {# is not closed");
      return advance(begin);
    }
    close(end + 2, end > begin ? text_[end - 1] : '\0', true);
  }

  // True for the tag `word` with its name at or after `at`; sets its sign and end.
  bool is_tag(size_t at, std::string_view word, size_t& end, char& sign) const {
    at = skip_space(at);
    if (text_.compare(at, word.size(), word) != 0) return false;
    at = skip_space(at + word.size());
    sign = at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : '\0';
    if (sign) ++at;
    end = at + 2;
    return text_.compare(at, 2, "%}") == 0;
  }

  // Adds text up to {% endraw %}.
  bool raw(size_t at, int opened) {
    size_t end = 0;
    char sign = '\0';
    if (!is_tag(at, "raw", end, sign) || sign == '+') return false;
    close(end, sign, false);
    for (size_t tag = text_.find("{%", at_); tag != std::string::npos;
         tag = text_.find("{%", tag + 1)) {
      const char before = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      const bool has_sign = before == '-' || before == '+';
      if (!is_tag(tag + 2 + (has_sign ? 1 : 0), "endraw", end, sign)) continue;
      add_data(std::string_view(text_).substr(at_, tag - at_), has_sign ? before : '\0', true);
      close(end, sign, true);
      return true;
    }
    if (at_ < text_.size()) fail_at(origin_, opened, "{% raw %} is not closed by {% endraw %}");
    return true;
  }

  // Adds the tokens of a tag up to its end.
  void inside(bool block, int opened) {
    const std::string_view end = block ? "%}" : "}}";
    std::string open;  // unclosed brackets
    while (true) {
      const size_t at = skip_space(at_);
      advance(at);
      if (at == text_.size()) {
        fail_at(origin_, opened, "a tag ", block ? "{%" : "{{", " is not closed");
      }
      const bool minus = text_[at] == '-', plus = block && text_[at] == '+';
      const size_t behind = at + (minus || plus ? 1 : 0);
      if (open.empty() && text_.compare(behind, 2, end) == 0) {
        add(block ? Kind::kBlockEnd : Kind::kVariableEnd, "");
        close(behind + 2, behind > at ? text_[at] : '\0', block);
        return;
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const char c = text_[at_];
    if (is_digit(c)) {
      number();
    } else if (c == '"' || c == '\'') {
      string(c);
    } else if (is_name(at_)) {
      size_t end = at_;
      while (end < text_.size() && is_name(end)) end += code_point_at(text_, end).length;
      add(Kind::kName, text_.substr(at_, end - at_));
      advance(end);
    } else {
      operation(open);
    }
  }

  bool is_name(size_t at) const {
    return text_[at] == '_' || is_python_alnum(code_point_at(text_, at).code);
  }

  void number() {
    size_t end = at_;
    const auto digits = [&] {
      while (end < text_.size() &&
             (is_digit(text_[end]) ||
              (text_[end] == '_' && end + 1 < text_.size() && is_digit(text_[end + 1])))) {
        ++end;
      }
    };
    digits();
    Kind kind = Kind::kInteger;
    const auto digit_at = [&](size_t at) { return at < text_.size() && is_digit(text_[at]); };
    const bool of_item = at_ > 0 && text_[at_ - 1] == '.';  // an item index, as in rows.0.1
    if (!of_item && end < text_.size() && text_[end] == '.' && digit_at(end + 1)) {
      kind = Kind::kFloat;
      ++end;
      digits();
    }
    if (!of_item && end < text_.size() && (text_[end] | 0x20) == 'e') {
      const bool sign = end + 1 < text_.size() && (text_[end + 1] == '-' || text_[end + 1] == '+');
      if (digit_at(end + 1 + (sign ? 1 : 0))) {
        kind = Kind::kFloat;
        end += 1 + (sign ? 1 : 0);
        digits();
      }
    }
    std::string text = text_.substr(at_, end - at_);
    std::erase(text, '_');
    add(kind, text);
    advance(end);
  }

  void string(char quote) {
    std::string value;
    size_t at = at_ + 1;
    while (at < text_.size() && text_[at] != quote) {
      if (text_[at] == '\\' && at + 1 < text_.size()) {
        at = escape(at + 1, value);
      } else {
        value += text_[at++];
      }
    }
    if (at >= text_.size()) fail("a string is not closed by ", quote);
    add(Kind::kString, value);
    advance(at + 1);
  }

  // Python's escapes; `at` is after the backslash. Unknown escapes are kept.
  size_t escape(size_t at, std::string& value) const {
    constexpr std::string_view kLetters = "\\'\"abfnrtv";
    constexpr std::string_view kMeant = "\\'\"\a\b\f\n\r\t\v";
    const char c = text_[at];
    if (const size_t known = kLetters.find(c); known != kLetters.npos) {
      value += kMeant[known];
      return at + 1;
    }
    if (c == '\n') return at + 1;
    const size_t most = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;
    if (most > 0) {
      for (size_t i = 1; i <= most; ++i) {
        const char digit = at + i < text_.size() ? text_[at + i] : '\0';
        const bool letter = (digit | 0x20) >= 'a' && (digit | 0x20) <= 'f';
        if (!is_digit(digit) && !letter) fail("an escape \\", c, " needs ", most, " digits");
        code = code << 4 | static_cast<uint32_t>(letter ? (digit | 0x20) - 'a' + 10 : digit - '0');
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
        fail("an escape \\", c, " is no character");
      }
      append_utf8(value, code);
      return at + 1 + most;
    }
    if (c >= '0' && c <= '7') {
      size_t end = at;
      for (; end < at + 3 && end < text_.size() && text_[end] >= '0' && text_[end] <= '7'; ++end) {
        code = code << 3 | static_cast<uint32_t>(text_[end] - '0');
      }
      append_utf8(value, code);
      return end;
    }
    value += '\\';
    return at;
  }

  void operation(std::string& open) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    const std::string_view rest = std::string_view(text_).substr(at_);
    for (const std::string_view two : kTwo) {
      if (!rest.starts_with(two)) continue;
      add(Kind::kOperator, std::string(two));
      advance(at_ + 2);
      return;
    }
    const char c = rest[0];
    if (std::string_view("+-*/%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      fail("found ", string_repr(rest.substr(0, code_point_at(rest, 0).length)), " in a tag");
    }
    if (c == '(' || c == '[' || c == '{') open += c;
    if (c == ')' || c == ']' || c == '}') {
      const char needed = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (!open.ends_with(needed)) fail("found '", c, "', which closes nothing");
      open.pop_back();
    }
    add(Kind::kOperator, std::string(1, c));
    advance(at_ + 1);
  }

  const std::string text_;
  const std::string& origin_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the text after the last tag starts a line
};

}  // namespace

std::string shown(const Token& token) {
  switch (token.kind) {
    case Kind::kData:
      return "text";
    case Kind::kVariableBegin:
      return "{{";
    case Kind::kVariableEnd:
      return "}}";
    case Kind::kBlockBegin:
      return "{%";
    case Kind::kBlockEnd:
      return "%}";
    case Kind::kEnd:
      return "the end of the template";
    case Kind::kString:
      return string_repr(token.text);
    default:
      return "'" + token.text + "'";
  }
}

std::vector<Token> tokens_of(std::string_view text, const std::string& origin) {
  return Lexer(text, origin).run();
}

}  // namespace tessera::jinja
