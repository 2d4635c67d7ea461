// SPDX-License-Identifier: MIT
// Unicode Standard Annex 15: decompose, reorder by combining class, compose.
#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "lib/data/normalizer.h"
#include "lib/data/unicode.h"

namespace tessera {
namespace {

constexpr uint32_t kHangul = 0xAC00, kJamoL = 0x1100, kJamoV = 0x1161, kJamoT = 0x11A7;
constexpr uint32_t kCountL = 19, kCountV = 21, kCountT = 28;

struct Tables {
  struct Parts {
    uint32_t first, second;  // second 0: a single code point
  };
  absl::flat_hash_map<uint32_t, Parts> decompositions;
  absl::flat_hash_map<uint64_t, uint32_t> compositions;
  absl::flat_hash_map<uint32_t, uint8_t> classes;

  static uint64_t pair(uint32_t first, uint32_t second) { return uint64_t{first} << 32 | second; }

  Tables() {
    const char* at = kDecompositions;
    const char* const end = at + std::strlen(at);
    const auto number = [&] {
      uint32_t value = 0;
      at = std::from_chars(at, end, value, 16).ptr;
      return value;
    };
    for (uint32_t code = 0; at < end; at += *at == ' ') {
      Parts parts{number(), 0};
      ++code;
      if (*at == '=') {
        ++at;
        code = parts.first;
        parts.first = number();
      }
      if (*at == '+') {
        ++at;
        parts.second = number();
      }
      decompositions[code] = parts;
      if (*at == '!') {
        ++at;
      } else if (parts.second != 0) {
        compositions[pair(parts.first, parts.second)] = code;
      }
    }
    for (size_t i = 0; i < kCombiningClassesSize; ++i) {
      const CombiningClass& range = kCombiningClasses[i];
      for (uint32_t code = range.first; code <= range.last; ++code) classes[code] = range.value;
    }
  }

  uint8_t class_of(uint32_t code) const {
    const auto found = classes.find(code);
    return found == classes.end() ? 0 : found->second;
  }

  // 0: no composition.
  uint32_t composed(uint32_t first, uint32_t second) const {
    if (first >= kJamoL && first < kJamoL + kCountL && second >= kJamoV &&
        second < kJamoV + kCountV) {
      return kHangul + ((first - kJamoL) * kCountV + second - kJamoV) * kCountT;
    }
    const bool is_pair = first >= kHangul && first < kHangul + kCountL * kCountV * kCountT &&
                         (first - kHangul) % kCountT == 0;
    if (is_pair && second > kJamoT && second < kJamoT + kCountT) return first + second - kJamoT;
    const auto found = compositions.find(pair(first, second));
    return found == compositions.end() ? 0 : found->second;
  }
};

const Tables& tables() {
  static const Tables tables;
  return tables;
}

struct Character {
  uint32_t code;
  uint8_t combining;
  size_t begin;   // offset of the original character
  uint32_t from;  // the original character
};

// Hangul syllables need not be decomposed: what composes with them composes with their parts.
void append_decomposed(uint32_t code, size_t begin, uint32_t from, std::vector<Character>& out) {
  const auto found = tables().decompositions.find(code);
  if (found == tables().decompositions.end()) {
    out.push_back({code, tables().class_of(code), begin, from});
    return;
  }
  append_decomposed(found->second.first, begin, from, out);
  if (found->second.second != 0) append_decomposed(found->second.second, begin, from, out);
}

void order(std::vector<Character>& text) {
  for (auto run = text.begin(); run != text.end();) {
    const auto marks =
        std::find_if(run, text.end(), [](const Character& c) { return c.combining != 0; });
    run = std::find_if(marks, text.end(), [](const Character& c) { return c.combining == 0; });
    std::stable_sort(marks, run, [](const Character& a, const Character& b) {
      return a.combining < b.combining;
    });
  }
}

std::vector<Character> compose(const std::vector<Character>& text) {
  std::vector<Character> out;
  size_t starter = text.size();  // no starter
  uint8_t last = 0;              // combining class of the last character after it
  for (const Character& next : text) {
    if (starter < out.size() && (last == 0 || last < next.combining)) {
      if (const uint32_t both = tables().composed(out[starter].code, next.code)) {
        out[starter].code = both;
        continue;
      }
    }
    if (next.combining == 0) starter = out.size();
    last = next.combining;
    out.push_back(next);
  }
  return out;
}

}  // namespace

std::optional<NormalizedText> nfc_of(std::string_view text) {
  bool changes = false;
  std::vector<Character> characters;
  for (size_t at = 0; at < text.size() && !changes;) {
    const CodePoint point = code_point_at(text, at);
    changes = may_change_by_nfc(point.code);
    at += point.length;
  }
  if (!changes) return std::nullopt;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    append_decomposed(point.code, at, point.code, characters);
    at += point.length;
  }
  order(characters);
  std::vector<Character> composed = compose(characters);
  // Reordered marks get the smallest offset of all that follow.
  for (size_t i = composed.size(); i-- > 1;) {
    composed[i - 1].begin = std::min(composed[i - 1].begin, composed[i].begin);
  }
  NormalizedText result;
  for (size_t i = 0; i < composed.size(); ++i) {
    const Character& one = composed[i];
    const bool alone = i + 1 == composed.size() || composed[i + 1].begin > one.begin;
    const size_t before = result.text.size();
    append_utf8(result.text, one.code);
    for (size_t byte = 0; byte < result.text.size() - before; ++byte) {
      result.origin.push_back(one.begin + (alone && one.code == one.from ? byte : 0));
    }
  }
  if (result.text == text) return std::nullopt;
  result.origin.push_back(text.size());
  return result;
}

}  // namespace tessera
