// SPDX-License-Identifier: MIT
#include "lib/data/unicode.h"

#include <algorithm>
#include <ranges>
#include <span>
#include <vector>

#include "lib/core/file.h"

namespace tessera {
namespace {

bool contains(const CodePointRange* table, size_t size, uint32_t code) {
  const auto* after = std::upper_bound(
      table, table + size, code,
      [](uint32_t wanted, const CodePointRange& range) { return wanted < range.first; });
  return after != table && code <= (after - 1)->last;
}

constexpr uint32_t kSigma = 0x3A3, kFinalSigma = 0x3C2, kDottedI = 0x130, kDotAbove = 0x307;

uint32_t moved(const CaseRun* runs, size_t size, uint32_t code) {
  const auto* after =
      std::upper_bound(runs, runs + size, code,
                       [](uint32_t wanted, const CaseRun& run) { return wanted < run.first; });
  if (after == runs) return code;
  const CaseRun& run = *(after - 1);
  const bool moves = code <= run.last && (code - run.first) % run.step == 0;
  return moves ? code + static_cast<uint32_t>(run.difference) : code;
}

uint32_t lower_of(uint32_t code) {
  if (code < 0x80) return code >= 'A' && code <= 'Z' ? code | 0x20 : code;
  return moved(kLowerRuns, kLowerRunsSize, code);
}

const SpecialCase* special_case(uint32_t code) {
  const auto* end = kSpecialCases + kSpecialCasesSize;
  const auto* found =
      std::lower_bound(kSpecialCases, end, code,
                       [](const SpecialCase& one, uint32_t wanted) { return one.code < wanted; });
  return found != end && found->code == code ? found : nullptr;
}

void append_upper(std::string& text, uint32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code >= 'a' && code <= 'z' ? code & 0x5F : code);
  } else if (const SpecialCase* special = special_case(code)) {
    text += special->upper;
  } else {
    append_utf8(text, moved(kUpperRuns, kUpperRunsSize, code));
  }
}

// True if the nearest code point that case mapping does not ignore is cased.
template <typename Codes>
bool meets_cased(const Codes& codes) {
  for (const uint32_t code : codes) {
    if (contains(kCaseIgnorable, kCaseIgnorableSize, code)) continue;
    return contains(kCased, kCasedSize, code);
  }
  return false;
}

}  // namespace

bool is_letter(uint32_t code) {
  if (code < 0x80) return (code | 0x20) >= 'a' && (code | 0x20) <= 'z';
  return contains(kLetters, kLettersSize, code);
}

bool is_number(uint32_t code) {
  if (code < 0x80) return code >= '0' && code <= '9';
  return contains(kNumbers, kNumbersSize, code);
}

bool is_white_space(uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13);
  return contains(kWhiteSpace, kWhiteSpaceSize, code);
}

bool is_upper_letter(uint32_t code) {
  if (code < 0x80) return code >= 'A' && code <= 'Z';
  return contains(kUpperLetters, kUpperLettersSize, code);
}

bool is_lower_letter(uint32_t code) {
  if (code < 0x80) return code >= 'a' && code <= 'z';
  return contains(kLowerLetters, kLowerLettersSize, code);
}

bool is_mark(uint32_t code) { return code >= 0x300 && contains(kMarks, kMarksSize, code); }

bool is_word_point(uint32_t code) { return contains(kWordPoints, kWordPointsSize, code); }

bool may_change_by_nfc(uint32_t code) {
  return code >= 0x300 && contains(kChangedByNfc, kChangedByNfcSize, code);
}

bool is_python_alnum(uint32_t code) { return contains(kPythonAlnum, kPythonAlnumSize, code); }

bool is_python_space(uint32_t code) { return contains(kPythonSpace, kPythonSpaceSize, code); }

bool is_python_printable(uint32_t code) {
  return !contains(kPythonUnprintable, kPythonUnprintableSize, code);
}

bool is_cased(uint32_t code) { return contains(kCased, kCasedSize, code); }

std::string python_upper(std::string_view text) {
  std::string upper;
  upper.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    append_upper(upper, point.code);
    at += point.length;
  }
  return upper;
}

std::string python_title(uint32_t code) {
  std::string title;
  const SpecialCase* special = special_case(code);
  if (special) return special->title;
  append_upper(title, code);
  return title;
}

std::string python_lower(std::string_view text) {
  std::vector<uint32_t> codes;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    codes.push_back(point.code);
    at += point.length;
  }
  std::string lower;
  lower.reserve(text.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    const std::span all(codes);
    if (codes[i] == kDottedI) {
      append_utf8(lower, 'i');
      append_utf8(lower, kDotAbove);
    } else if (codes[i] == kSigma && meets_cased(all.first(i) | std::views::reverse) &&
               !meets_cased(all.subspan(i + 1))) {
      append_utf8(lower, kFinalSigma);
    } else {
      append_utf8(lower, lower_of(codes[i]));
    }
  }
  return lower;
}

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return uint32_t{static_cast<unsigned char>(text[at + i])}; };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

void append_utf8(std::string& text, uint32_t code) {
  const auto put = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  }
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  while (true) {
    const size_t valid = utf8_valid_prefix(bytes);
    text += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) return text;
    text += "\xEF\xBF\xBD";
    // The ill-formed part is the longest prefix of a well-formed sequence, at least one byte.
    const auto lead = static_cast<unsigned char>(bytes[0]);
    const size_t most = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    size_t length = 1;
    while (length < std::min(most, bytes.size())) {
      // A prefix is well-formed if some continuation completes it.
      std::string trial(bytes.substr(0, length + 1));
      bool completes = false;
      for (const char next : {'\x80', '\x90', '\xA0'}) {
        std::string whole = trial;
        while (whole.size() <= most) whole += next;
        completes = completes || utf8_valid_prefix(whole) == whole.size();
      }
      if (!completes) break;
      ++length;
    }
    bytes.remove_prefix(length);
  }
}

}  // namespace tessera
