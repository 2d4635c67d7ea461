// SPDX-License-Identifier: MIT
#include "lib/data/pre_tokenizer.h"

#include <algorithm>
#include <iterator>

#include "lib/data/unicode.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::string_view kBloomPattern = " ?[^(\\s|[.,!?…。，、।۔،])]+";
constexpr std::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kWordsPattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}";
constexpr std::string_view kLlama3Digits = "{1,3}";  // empty for Qwen, which splits every digit
constexpr std::string_view kOthersPattern =
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

constexpr std::string_view kTekkenPattern =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{"
    "N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// Characters that the class in BLOOM's pattern excludes: white space and these.
bool is_bloom_word(uint32_t code) {
  constexpr uint32_t kExcluded[] = {'(',    '|',    ')',    '.',    ',',   '!',   '?',
                                    0x2026, 0x3002, 0xFF0C, 0x3001, 0x964, 0x6D4, 0x60C};
  return !is_white_space(code) &&
         std::find(std::begin(kExcluded), std::end(kExcluded), code) == std::end(kExcluded);
}

bool is_line_break(uint32_t code) { return code == '\r' || code == '\n'; }

bool is_break_or_slash(uint32_t code) { return is_line_break(code) || code == '/'; }

// Starts (not lower case) and ends (not upper case) of Mistral's words.
bool begins_word(uint32_t code) {
  return is_mark(code) || (is_letter(code) && !is_lower_letter(code));
}
bool ends_word(uint32_t code) {
  return is_mark(code) || (is_letter(code) && !is_upper_letter(code));
}

bool is_other(uint32_t code) {
  return !is_white_space(code) && !is_letter(code) && !is_number(code);
}

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool matches(size_t at, bool (*is)(uint32_t)) const {
    return at < text_.size() && is(code_point_at(text_, at).code);
  }
  size_t after(size_t at) const { return at + code_point_at(text_, at).length; }
  // End of the run of at most `most` matching characters.
  size_t run(size_t at, bool (*is)(uint32_t), size_t most = std::string_view::npos) const {
    for (; most > 0 && matches(at, is); --most) at = after(at);
    return at;
  }
  bool has(size_t at, char c) const { return at < text_.size() && text_[at] == c; }

  // End of the piece that starts at `at`.
  size_t gpt2(size_t at) const {
    if (const size_t end = contraction(at, false); end > at) return end;
    const size_t word = has(at, ' ') ? at + 1 : at;
    for (const auto is : {is_letter, is_number, is_other}) {
      if (matches(word, is)) return run(word, is);
    }
    return spaces(at);
  }

  // Llama 3's and Qwen's pieces, with up to three digits or one.
  size_t word(size_t at, size_t most_digits) const {
    if (const size_t end = contraction(at, true); end > at) return end;
    if (matches(at, is_letter)) return run(at, is_letter);
    if (matches(at, is_number)) return run(at, is_number, most_digits);
    if (!matches(at, is_line_break) && matches(after(at), is_letter)) {
      return run(after(at), is_letter);
    }
    return others(at, is_line_break);
  }

  // Mistral's pieces: a word ends before an upper-case letter that follows a lower-case one.
  size_t tekken(size_t at) const {
    const bool prefixed = !matches(at, is_line_break) && !matches(at, is_letter) &&
                          !matches(at, is_number) && after(at) < text_.size();
    for (const auto end_of : {&Scanner::with_end, &Scanner::with_beginning}) {
      if (prefixed) {
        if (const size_t end = (this->*end_of)(after(at)); end > 0) return end;
      }
      if (const size_t end = (this->*end_of)(at); end > 0) return end;
    }
    if (matches(at, is_number)) return after(at);
    return others(at, is_break_or_slash);
  }

 private:
  // begins_word* ends_word+ with backtracking; 0: no match.
  size_t with_end(size_t at) const {
    size_t last = std::string_view::npos;  // start of the last character that may end it
    for (; matches(at, begins_word); at = after(at)) {
      if (matches(at, ends_word)) last = at;
    }
    if (matches(at, ends_word)) return run(at, ends_word);
    return last == std::string_view::npos ? 0 : run(last, ends_word);
  }

  // begins_word+ ends_word*
  size_t with_beginning(size_t at) const {
    return matches(at, begins_word) ? run(run(at, begins_word), ends_word) : 0;
  }

  // Characters other than letters and numbers, and what may follow them; else white space.
  size_t others(size_t at, bool (*follows)(uint32_t)) const {
    const size_t word = has(at, ' ') ? at + 1 : at;
    if (matches(word, is_other)) return run(run(word, is_other), follows);
    const std::string_view blank = text_.substr(at, run(at, is_white_space) - at);
    const size_t last_break = blank.find_last_of("\r\n");
    return last_break != blank.npos ? at + last_break + 1 : spaces(at);
  }

  // \s+(?!\S)|\s+ : the last space stays with the next word, unless it is the only one.
  size_t spaces(size_t at) const {
    size_t last = at, end = at;
    while (matches(end, is_white_space)) {
      last = end;
      end = after(end);
    }
    return end == text_.size() || last == at ? end : last;
  }

  // End of an English contraction such as 'll at `at`, else `at`.
  size_t contraction(size_t at, bool any_case) const {
    if (!has(at, '\'')) return at;
    const auto letter = [&](size_t i) -> char {
      if (i >= text_.size()) return '\0';
      const char c = text_[i];
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
    };
    const char first = letter(at + 1), second = letter(at + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
    if (first == 'l' && second == 'l') return at + 3;
    // The long s counts as an s when case is ignored.
    if (any_case && text_.substr(at + 1, 2) == "ſ") return at + 3;
    return at;
  }

  std::string_view text_;
};

}  // namespace

std::optional<PreTokenizer> pre_tokenizer_for(std::string_view regular_expression) {
  if (regular_expression == kBloomPattern) return PreTokenizer::kBloom;
  if (regular_expression == kGpt2Pattern) return PreTokenizer::kGpt2;
  const auto words_with = [&](std::string_view digits) {
    return regular_expression == concat(kWordsPattern, digits, kOthersPattern);
  };
  if (words_with(kLlama3Digits)) return PreTokenizer::kLlama3;
  if (words_with("")) return PreTokenizer::kQwen;
  if (regular_expression == kTekkenPattern) return PreTokenizer::kTekken;
  return std::nullopt;
}

void split_pieces(PreTokenizer kind, std::string_view text,
                  const std::function<void(std::string_view)>& piece) {
  const Scanner scan(text);
  size_t done = 0, at = 0;
  while (at < text.size()) {
    size_t begin = at;
    if (kind == PreTokenizer::kBloom) {
      // Text that the pattern does not match forms one piece.
      const size_t word = scan.has(at, ' ') && scan.matches(at + 1, is_bloom_word) ? at + 1 : at;
      at = scan.run(word, is_bloom_word);
      if (at == begin) {
        at = scan.after(at);
        continue;
      }
      if (done < begin) piece(text.substr(done, begin - done));
    } else {
      at = kind == PreTokenizer::kGpt2     ? scan.gpt2(at)
           : kind == PreTokenizer::kTekken ? scan.tekken(at)
                                           : scan.word(at, kind == PreTokenizer::kQwen ? 1 : 3);
    }
    piece(text.substr(begin, at - begin));
    done = at;
  }
  if (done < text.size()) piece(text.substr(done));
}

}  // namespace tessera
