// SPDX-License-Identifier: MIT
#pragma once
// Unicode properties for pre-tokenisation and answer scores. All texts must be valid UTF-8.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

struct CodePointRange {
  uint32_t first, last;
};
extern const CodePointRange kLetters[];
extern const size_t kLettersSize;
extern const CodePointRange kNumbers[];
extern const size_t kNumbersSize;
extern const CodePointRange kWhiteSpace[];
extern const size_t kWhiteSpaceSize;

// Code points first, first + step, ..., last, whose case mapping adds `difference`.
struct CaseRun {
  uint32_t first, last, step;
  int32_t difference;
};
extern const CaseRun kLowerRuns[];
extern const size_t kLowerRunsSize;
extern const CaseRun kUpperRuns[];
extern const size_t kUpperRunsSize;
// Code points whose upper case is several, or differs from their title case.
struct SpecialCase {
  uint32_t code;
  const char *upper, *title;
};
extern const SpecialCase kSpecialCases[];
extern const size_t kSpecialCasesSize;
extern const CodePointRange kPythonUnprintable[];
extern const size_t kPythonUnprintableSize;
extern const CodePointRange kCaseIgnorable[], kCased[], kPythonAlnum[], kPythonSpace[];
extern const size_t kCaseIgnorableSize, kCasedSize, kPythonAlnumSize, kPythonSpaceSize;

// Tables for NFC without Hangul. Decompositions in one step, such as "C0=41+300" (the code point is
// omitted if it follows the previous one; "!": not composed again). Canonical combining classes.
// Code points without which a text is in NFC already.
extern const char kDecompositions[];
struct CombiningClass {
  uint32_t first, last;
  uint8_t value;
};
extern const CombiningClass kCombiningClasses[];
extern const size_t kCombiningClassesSize;
extern const CodePointRange kChangedByNfc[];
extern const size_t kChangedByNfcSize;
extern const CodePointRange kWordPoints[];
extern const size_t kWordPointsSize;
extern const CodePointRange kUpperLetters[], kLowerLetters[], kMarks[];
extern const size_t kUpperLettersSize, kLowerLettersSize, kMarksSize;

bool is_letter(uint32_t code);        // \p{L}
bool is_number(uint32_t code);        // \p{N}
bool is_white_space(uint32_t code);   // \s
bool is_upper_letter(uint32_t code);  // \p{Lu} and \p{Lt}
bool is_lower_letter(uint32_t code);  // \p{Ll}
bool is_mark(uint32_t code);          // \p{M}
bool is_word_point(uint32_t code);    // \w
bool may_change_by_nfc(uint32_t code);

// As Python's str: isalnum(), white space of split(), isprintable(), whether a letter is cased.
// lower() maps a whole text, since a sigma's form depends on its neighbours.
bool is_python_alnum(uint32_t code);
bool is_python_space(uint32_t code);
bool is_python_printable(uint32_t code);
bool is_cased(uint32_t code);
std::string python_lower(std::string_view text);
std::string python_upper(std::string_view text);
std::string python_title(uint32_t code);  // of one code point

struct CodePoint {
  uint32_t code;
  size_t length;  // bytes
};
CodePoint code_point_at(std::string_view text, size_t at);

void append_utf8(std::string& text, uint32_t code);

// Replaces every maximal ill-formed part by U+FFFD, as recommended by the Unicode standard.
std::string replace_invalid_utf8(std::string_view bytes);

}  // namespace tessera
